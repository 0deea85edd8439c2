"""What people may pass to an engine through a profile: tuning, and nothing that opens a file or a door.

The catalog refuses what these rules refuse, and so does each node, because a profile reaches it over the bus. Pure:
the standard library only.
"""

from .arguments import argument_problem, argument_problems
from .environment import environment_problem, environment_problems
from .options import knows, option_problems

__all__ = [
    "argument_problem",
    "argument_problems",
    "environment_problem",
    "environment_problems",
    "knows",
    "option_problems",
]
