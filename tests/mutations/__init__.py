"""Breaks lines of the product, and finds out whether the tests notice: `python -m tests.mutations`."""

# Environment variables: the folder of the recorded lines, and the test that runs.
FOLDER_VARIABLE, TEST_VARIABLE = "T0_LINES", "T0_LINES_TEST"
