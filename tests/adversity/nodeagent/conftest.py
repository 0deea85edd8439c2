from tests.integration.nodeagent.conftest import box

__all__ = ["box"]
