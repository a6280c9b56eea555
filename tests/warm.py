"""Imported by the server of `small.fork` before it forks: the libraries that a training step imports only when it is
called."""
# noqa: F401
import accelerate, pandas, pyarrow.parquet, sympy, torch._dynamo, torch.distributed.fsdp, torch.distributed.checkpoint
import agentlab.cli, agentlab.view  # noqa: F401
from accelerate.utils import modeling, other  # noqa: F401
from small import Paying, small_policy

small_policy(Paying())      # transformers imports a model's code when it makes one
