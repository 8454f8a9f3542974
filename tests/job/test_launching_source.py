"""Programs that start ranks themselves, by their source."""

import ast

from tests.each import each
from zlaunch.job.launching_source import launcher_of

STARTS = {
    "from deepspeed.launcher.runner import main\nmain(['t.py'])": "DeepSpeed's launcher",
    "import deepspeed\nfrom deepspeed.launcher import runner\nrunner.main()": "DeepSpeed's launcher",
    "from torch.distributed.run import get_args_parser, run\nrun(get_args_parser().parse_args())": "torchrun",
    "import torch.distributed.run\ntorch.distributed.run.main()": "torchrun",
    "from torch.distributed.launcher.api import elastic_launch\nelastic_launch(c, f)()": "torchrun",
    "import subprocess\nsubprocess.run(['torchrun', 't.py'])": "torchrun",
    "import os, subprocess\nsubprocess.run(['torchrun', os.path.dirname(__file__) + '/t.py'])": "torchrun",
    "import os, sys\nos.system(f'accelerate launch {sys.argv[1]}')": "accelerate launch",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'torch.distributed.run'])": "torchrun",
}
DOES_NOT = (
    "import os, subprocess\nsubprocess.run(['torchrun', os.path.abspath(__file__)], env={'X': '1'})",
    "import subprocess, sys\nsubprocess.run(['torchrun', *sys.argv])",
    "import config\nfrom torch.distributed.run import main\nif config.n > 1:\n    main()\nelse:\n    train()",
    "from torch.distributed.run import get_args_parser\nget_args_parser()",
    "import os\nfrom torch.distributed.run import main\nif 'LOCAL_RANK' not in os.environ:\n    main()",
    "import deepspeed\nfrom deepspeed.launcher.runner import main\ndeepspeed.initialize()\nmain()",
    "import subprocess\nsubprocess.run(['git', 'log', 'torchrun'])",
    "print('torchrun t.py')",
)


@each("source", STARTS)
def test_a_program_that_calls_a_launcher_starts_ranks(source: str) -> None:
    assert launcher_of(ast.walk(ast.parse(source))) == STARTS[source]


@each("source", DOES_NOT)
def test_a_program_that_may_be_a_rank_is_started(source: str) -> None:
    assert launcher_of(ast.walk(ast.parse(source))) is None
