"""Questions of estimates, made from a few words."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zlaunch.config.resolve.job import ResolveContext
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.forecast import PHASES, Forecast, Phase
from zlaunch.estimate.query import (
    Estimate,
    EstimateQuery,
    Rejected,
    training_of,
    workload_of,
)
from zlaunch.estimate.request import _machine_with
from zlaunch.estimate.speed.communication import Communication
from zlaunch.estimate.speed.step_time import Roofline, Speed
from zlaunch.estimate.strategies import STRATEGIES, StrategyTable, apply_strategy
from zlaunch.hosts.machine.gpu_catalog import known_gpus
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig, parse_model
from zlaunch.job.source import Source
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import Argument, TrainerArgs

GIB = 1 << 30
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
SITE = Cluster(num_hosts=1, ranks_per_host=8, gpu=known_gpus()["H100-80GB"])


def model(**changes: Any) -> ModelConfig:
    return parse_model(json.dumps({**LLAMA, **changes}).encode(), "m/config.json", "m/config.json")


def question(*argv: str, options: Options | None = None, micro: int = 8, **job: Any) -> EstimateQuery:
    spec = JobSpec(script=Path(), args=ScriptArgs.of(argv), **job)
    args = TrainerArgs(
        {"per_device_train_batch_size": Argument(micro, Source.option("--micro-batch"), given=True)}
    )
    one = model()
    machine = _machine_with("H100-80GB", True, 8)
    given = ResolveContext(None, args, one, machine, world_size=8)
    return EstimateQuery(spec, given, one, training_of(one, ScriptArgs.of(argv), options or Options()), SITE)


def forecast(gpu: float, reserved: float | None = None, pageable: float = 0, **changes: Any) -> Forecast:
    """Make a forecast that is equally full in every phase; GiB."""
    held = {
        "gpu": int(gpu * GIB),
        "reserved": int((gpu if reserved is None else reserved) * GIB),
        "pageable": int(pageable * GIB),
    }
    phases = tuple(Phase(name, held, held) for name in PHASES)
    plain = Forecast("rehearsal", phases, {"gpu": {"activations": held["gpu"]}}, 100, 100, "FusedAdam")
    return replace(plain, **changes)


def by_formula(config: Mapping[str, Any], micro: int = 8, seq_len: int = 1024) -> StrategyTable:
    """Compare all strategies for a model on eight GPUs, in closed form."""
    one = parse_model(json.dumps(config).encode(), "m/config.json", "m/config.json")
    asked = replace(question(options=Options(seq_len=seq_len), micro=micro), model=one)
    results = Estimator().closed_form([apply_strategy(asked, strategy) for strategy in STRATEGIES])
    return StrategyTable(tuple(zip(STRATEGIES, results, strict=True)))


def speed(seconds: float) -> Speed:
    """Make the speed of a job whose step of one token takes so long."""
    return Speed(Communication((), 0, 0, 0, 0), Roofline((), seconds, (seconds, seconds), 1 / seconds))


def answer(one: EstimateQuery, told: Forecast, seconds: float | None = None) -> Estimate:
    """Answer a question with a forecast that was made up."""
    resolved = one.resolve()
    pace = None if seconds is None else speed(seconds)
    return Estimate(one, resolved, workload_of(one, resolved), told, pace)


Ask = Callable[[Sequence[EstimateQuery]], Sequence[Estimate | Rejected]]


class MadeUp(Estimator):
    """Guesses by one rule, knows by another, and remembers what it rehearsed."""

    def __init__(self, guess: Ask, truth: Ask | None = None) -> None:
        super().__init__()
        self.guess, self.truth = guess, truth or guess
        self.rounds: list[list[EstimateQuery]] = []

    def closed_form(self, queries: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        return list(self.guess(queries))

    def rehearse(
        self, queries: Sequence[EstimateQuery], *, resumes: bool = True
    ) -> list[Estimate | Rejected]:
        self.rounds.append(list(queries))
        return list(self.truth(queries))
