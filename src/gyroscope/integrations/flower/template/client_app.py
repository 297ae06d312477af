"""A node: trains the server's arrays on batches of its own and replies with the result, or with its momentum.

To train something else, replace `client.train` by your function that replies with the same arrays, trained.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from gyroscope.integrations.flower import client, worker_mod, worker_momentum


def momentum(message: Message, context: Context, call_next: worker_mod.Next) -> Message:
    """Momentum at the worker, where the run's configuration asks for it."""
    if context.run_config["momentum"] != "workers":
        return call_next(message, context)
    return worker_momentum(mu=float(context.run_config["mu"]))(message, context, call_next)


app = ClientApp(mods=[momentum])


@app.train()
def train(message: Message, context: Context) -> Message:
    return client.train(message, context)
