"""The server: asks the nodes for updates, round after round, and tolerates f Byzantine ones.

To change it, replace `serve` by your own code around `gyroscope.integrations.flower.RobustStrategy`.
"""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from gyroscope.integrations.flower.server import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve(grid, context)
