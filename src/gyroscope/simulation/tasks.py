"""Tasks: model, data, loss and preprocessing. The built-in ones by name, and `Task` for a user's own.

Example:
    >>> import gyroscope as gy
    >>> list(gy.tasks.TASKS)
    ['mnist', 'mnist-relu', 'fashion-mnist', 'cifar10', 'digits', 'text']
    >>> gy.tasks.parse("cifar10:width=0.25").defaults.workers
    25
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope._core import registry
from gyroscope._linalg.memory import prefer_large_pages
from gyroscope.simulation import models
from gyroscope.simulation.data import digits, topics
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.data.sources import load_raw
from gyroscope.simulation.task_metric import TaskMetric

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Defaults:
    """The settings that a configuration takes from its task where it leaves them unset."""

    workers: int = 15
    batch: int = 32
    clip: float = float("inf")
    l2: float = 0.0
    mu: float = 0.9
    lr: str = "0.1"
    steps: int = 300
    evaluate_every: int = 10


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, its training and test data, and its loss.

    Args:
        model: A function that builds the `nn.Module` (called after seeding, so that each seed has other initial
            parameters), or a module, whose parameters are then the start of every run. It may use batch-norm and
            dropout.
        train: (inputs, targets) tensors, a `Split`, or a map-style data set.
        test: The same.
        loss: Maps (outputs, targets) to the mean loss of a batch. The default takes log-probabilities (a model that
            ends with `LogSoftmax`); for plain outputs use `torch.nn.functional.cross_entropy`.
        defaults: The settings that a configuration takes where it leaves them unset: 15 workers, batch 32, rate 0.1.
        metric: What is measured on the test set besides the loss: "accuracy" (top-1), "loss", "perplexity", "mse", or a
            `TaskMetric`. By default accuracy, and mse where targets are no classes but floating-point numbers.
        name: What run directories and titles call it.

    Example:
        >>> import torch
        >>> import gyroscope as gy
        >>> inputs, targets = torch.randn(500, 8), torch.randint(2, (500,))
        >>> task = gy.Task(
        ...     model=lambda: torch.nn.Linear(8, 2),
        ...     train=(inputs[:400], targets[:400]),
        ...     test=(inputs[400:], targets[400:]),
        ...     loss=torch.nn.functional.cross_entropy,
        ... )
        >>> gy.train(gy.Config(rule="median", attack="empire", byzantine=3, steps=20), task=task).status
        'complete'
    """

    model: Callable[[], nn.Module] | nn.Module
    train: Split | tuple[Tensor, Tensor] | Any
    test: Split | tuple[Tensor, Tensor] | Any
    loss: LossFunction = F.nll_loss
    defaults: Defaults = Defaults()
    name: str = "custom"
    metric: TaskMetric | str | None = None


@dataclasses.dataclass(frozen=True)
class NamedTask(registry.Named):
    """A task that a configuration can name; its settings are known before its data is loaded.

    Derive from it to give the command line a task of your own, `--task my_module:MyTask`: a frozen dataclass with
    `defaults`, and a method `load` that returns a `Task`. Its fields are parameters, `--task my_module:MyTask:size=3`.
    """

    kind_in_errors = "task"
    defaults: ClassVar[Defaults]

    @abstractmethod
    def load(self, folder: str | Path | None = None, progress: bool = True) -> Task:
        """Return the task with its data.

        Args:
            folder: Where the data may be (`--data-dir`), or None where nobody said. The built-in tasks look in other
                places, too, such as the folder in the variable GYROSCOPE_DATA.
            progress: Whether to show a bar while data is fetched.
        """

    def _task(self, model: Callable[[], nn.Module], train: Split, test: Split) -> Task:
        return Task(model, train, test, defaults=self.defaults, name=str(self))


@dataclasses.dataclass(frozen=True)
class Mnist(NamedTask):
    """Hand-written digits and the (784)-L(100)-R-L(10)-S network: 79,510 parameters.

    The paper's text has a further ReLU before the log-softmax (`mnist-relu`). With it one seed in three loses an
    output class and the curves differ from the published ones, which come from the network without it.
    """

    name = "mnist"
    summary = "60,000 hand-written digits, (784)-L(100)-R-L(10)-S, 79,510 parameters"
    paper = "Baruch et al. 2019"
    defaults = Defaults(workers=51, batch=83, clip=2.0, l2=1e-4, mu=0.9, lr="0.5", steps=300, evaluate_every=5)

    relu_outputs: ClassVar[bool] = False
    normalisation: ClassVar[tuple[float, float]] = (0.1307, 0.3081)
    source: ClassVar[str] = "mnist"

    def load(self, folder: str | Path | None = None, progress: bool = True) -> Task:
        raw = load_raw(self.source, folder, progress)
        mean, std = self.normalisation

        def normalised(images: Tensor) -> Tensor:
            flat = images.flatten(1)
            fresh = torch.empty(flat.shape, dtype=torch.float32, device=flat.device)
            # Large pages: a batch reads rows from everywhere in it.
            return prefer_large_pages(fresh).copy_(flat).div_(255).sub_(mean).div_(std)

        return self._task(
            lambda: models.mlp(784, relu_outputs=self.relu_outputs),
            Split(normalised(raw.train_images), raw.train_labels),
            Split(normalised(raw.test_images), raw.test_labels),
        )


@dataclasses.dataclass(frozen=True)
class MnistRelu(Mnist):
    """`mnist` with the ReLU before the log-softmax that the paper's text prints."""

    name = "mnist-relu"
    summary = "mnist with a ReLU before the log-softmax, the paper's text to the letter"
    paper = "El Mhamdi et al. 2020"
    relu_outputs = True


@dataclasses.dataclass(frozen=True)
class FashionMnist(Mnist):
    """Pictures of clothes in MNIST's format, with the same network and settings."""

    name = "fashion-mnist"
    aliases = ("fmnist",)
    summary = "60,000 pictures of clothes; network and settings of mnist"
    paper = "Xiao et al. 2017"
    normalisation = (0.2860, 0.3530)
    source = "fashion-mnist"


@dataclasses.dataclass(frozen=True)
class Cifar10(NamedTask):
    """Colour pictures and the paper's convolutional network: 1,310,922 parameters at full width.

    `width` scales the numbers of channels for use on a CPU: 0.25 is about 18 times cheaper.
    Training pictures are flipped left to right with probability 1/2.
    """

    width: float = registry.number(1.0, "above 0 and at most 8", lambda width: 0 < width <= 8)

    name = "cifar10"
    aliases = ("cifar",)
    summary = "50,000 colour pictures, the paper's convolutional network, 1,310,922 parameters at width 1"
    paper = "Xie et al. 2019"
    defaults = Defaults(
        workers=25, batch=50, clip=5.0, l2=1e-2, mu=0.99, lr="0.01,1500:0.001", steps=3000, evaluate_every=100
    )

    means: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    stds: ClassVar[tuple[float, ...]] = (0.2023, 0.1994, 0.2010)

    def load(self, folder: str | Path | None = None, progress: bool = True) -> Task:
        raw = load_raw("cifar10", folder, progress)

        def normalised(pictures: Tensor) -> Tensor:
            mean = torch.tensor(self.means, device=pictures.device).view(3, 1, 1)
            std = torch.tensor(self.stds, device=pictures.device).view(3, 1, 1)
            # Channels last: convolutions on a CPU are 10 to 25 % faster with it.
            pictures = pictures.to(torch.float32, memory_format=torch.channels_last)
            return pictures.div_(255).sub_(mean).div_(std)

        def for_training(pictures: Tensor, stream: torch.Generator) -> Tensor:
            flipped = torch.rand(len(pictures), generator=stream).lt(0.5).to(pictures.device)
            return normalised(torch.where(flipped.view(-1, 1, 1, 1), pictures.flip(-1), pictures))

        return self._task(
            lambda: models.cnn(self.width),
            Split(raw.train_images, raw.train_labels, for_training),
            Split(raw.test_images, raw.test_labels, lambda pictures, stream: normalised(pictures)),
        )


@dataclasses.dataclass(frozen=True)
class Digits(NamedTask):
    """The 1,797 real 8x8 digits that ship inside scikit-learn, with MNIST's network on 64 inputs. No download.

    Every fifth sample is for testing (359 of them), the rest for training.
    """

    name = "digits"
    summary = "1,797 small hand-written digits from scikit-learn, (64)-L(100)-R-L(10)-S; needs no download"
    paper = "Alpaydin, Kaynak 1998"
    defaults = Defaults(workers=23, batch=4, clip=2.0, l2=1e-4, mu=0.9, lr="0.2", steps=150, evaluate_every=5)

    def load(self, folder: str | Path | None = None, progress: bool = True) -> Task:
        images, labels = digits.load()
        inputs = torch.from_numpy(images).to(torch.float32).div_(16)
        inputs = (inputs - inputs.mean()) / inputs.std()
        targets = torch.from_numpy(labels).to(torch.int64)
        test = torch.arange(len(inputs)) % 5 == 4
        return self._task(
            lambda: models.mlp(64), Split(inputs[~test], targets[~test]), Split(inputs[test], targets[test])
        )


@dataclasses.dataclass(frozen=True)
class Text(NamedTask):
    """A language model by characters: a small GPT on the help pages that ship with Python. No download.

    Its metric is perplexity, exp of the test loss per character; evaluations.csv has the loss, too. The last tenth of
    the text is for testing; pages quote each other, so that one in twelve of its windows of 100 characters occurs in
    the training text, too. Another version of Python has another text: compare only runs of the same one.
    """

    context: int = registry.number(32, "from 2 to 512", lambda context: 2 <= context <= 512, whole=True)
    width: int = registry.number(64, "a multiple of 4", lambda width: width >= 4 and width % 4 == 0, whole=True)
    layers: int = registry.number(2, "at least 1", lambda layers: layers >= 1, whole=True)

    name = "text"
    summary = "the 465,000 characters of Python's help pages, a GPT of 2 layers, 64 wide; needs no download"
    paper = "Radford et al. 2018"
    defaults = Defaults(workers=13, batch=16, clip=1.0, l2=0.0, mu=0.9, lr="1", steps=300, evaluate_every=25)

    def load(self, folder: str | Path | None = None, progress: bool = True) -> Task:
        text = topics.load(self.context)
        return Task(
            lambda: models.GPT(len(text.letters), self.context, self.width, self.layers),
            text.train,
            text.test,
            F.cross_entropy,
            self.defaults,
            str(self),
            "perplexity",
        )


TASKS: dict[str, type[NamedTask]] = {
    task.name: task for task in (Mnist, MnistRelu, FashionMnist, Cifar10, Digits, Text)
}


def parse(spec: str) -> NamedTask:
    """Return the task that a spec such as `cifar10:width=0.25` or `my_module:MyTask` describes."""
    name, parameters = registry.split(spec)
    return registry.make("task", NamedTask, TASKS, name, parameters)
