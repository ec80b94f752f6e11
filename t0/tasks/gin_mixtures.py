"""Registers the mixtures that gin defines, in the form of `mixtures.yaml`.

# in a gin file, or as --gin_param
mixtures.define = {'mine': {'tasks': ['reviews_.*', {'task': 'sciq_.*', 'cap': 3000}]}}
MIXTURE_NAME = 'mine'

register_gin_mixtures()      # now seqio.MixtureRegistry has "mine"
"""

from collections.abc import Mapping
from typing import Any

from t0.catalogue.mixture_members import resolve_mixtures
from t0.compat import gin, seqio
from t0.config.bindings import bound
from t0.sources import OwnMixture
from t0.sources.mixture_files import read_mixtures
from t0.tasks.few_shot_tasks import add_mixture_tasks

# The mixtures that this module has registered.
_registered: dict[str, OwnMixture] = {}


@gin.configurable("mixtures", module="t0")
def defined_mixtures(define: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Returns the mixtures that gin defines (gin: `mixtures.define`).

    Args:
      define: name of a mixture -> its definition, in the form of `mixtures.yaml`.
    """
    return define or {}


def register_gin_mixtures() -> None:
    """Registers the mixtures of `mixtures.define` that are not registered yet.

    Raises:
      UserError: a definition has a mistake, or another mixture has its name.
    """
    # Without mixtures, the function is not called, so that operative configs do not have it.
    if bound("mixtures.define", evaluate=False) is None:
        return
    names = [*seqio.MixtureRegistry.names()]
    read = read_mixtures(defined_mixtures(), "mixtures.define (gin)")
    new = [own for own in read if own.name not in names or _registered.get(own.name) != own]
    if not new:
        return
    add_mixture_tasks(new)
    others = dict.fromkeys(names, ())
    resolved = resolve_mixtures(new, list(seqio.TaskRegistry.names()), others)
    for name, members in resolved.items():  # in the order in which mixtures contain each other
        seqio.MixtureRegistry.add(name, members)
    _registered.update({own.name: own for own in new})
