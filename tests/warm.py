"""Imported by the server of `small.fork` before it forks: the libraries that a training step imports only when it is
called."""
# ruff: noqa: F401
import accelerate, pandas, pyarrow.parquet, sympy, torch._dynamo, torch.distributed.checkpoint, torch.distributed.fsdp
from accelerate.utils import modeling, other
import agentlab.cli, agentlab.view
from small import Paying, small_policy

small_policy(Paying())  # transformers imports a model's code when it makes one
