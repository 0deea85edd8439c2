"""Starts SGLang's server with the API key from the environment: ``python sglang_launcher.py OPTIONS``.

Run by the interpreter of SGLang's own environment, so it imports nothing of ours. The server takes its key as an
option; added here, in the process, it is on no command line that others can read.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    # The folder of this file stands first on the path: nothing in it is a module of the engine's.
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    key = os.environ.pop("LLMGW_ENGINE_KEY", None)
    sys.argv = ["sglang.launch_server", *sys.argv[1:], *(["--api-key", key] if key else [])]
    # As the main module under its own name: the processes it starts import it again by that name.
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
