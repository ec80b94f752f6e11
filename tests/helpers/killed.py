"""An exception that no code handles, for a kill in the middle of a function."""


class Killed(BaseException):
    """Simulates SIGKILL in a test. `except Exception` does not catch this class."""
