.PHONY: style quality test test-slow locks docs

style:      ## format, and mend what ruff can mend
	bin/setup
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

quality:    ## what .ci/run checks first
	bin/setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

test:
	bin/test

test-slow:
	bin/test -m 'slow and not gpu and not tpu and not network'

locks:      ## requirements.lock and requirements-3.10.lock, from requirements.in
	.venv/bin/python .ci/make_locks.py

docs:       ## site/ from docs/, in .venv-docs; strict: a broken link is an error
	bin/setup
	.venv/bin/python docs/make_reference.py
	test -x .venv-docs/bin/python || .venv/bin/python -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	.venv-docs/bin/mkdocs build --strict
