"""Plan files: YAML or JSON, with every problem shown at once."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from weightshift.cli.problems import describe_problems
from weightshift.contracts.plan import Plan
from weightshift.errors import InvalidPlan


class _StrictLoader(yaml.SafeLoader):
    """Refuses a field given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)


def read_plan(path: Path) -> Plan:
    """Read a plan. Raises `InvalidPlan` that lists every problem with the name of its field."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPlan(f"plan: {path} cannot be read ({error}); check the path.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidPlan(f"plan: {path} is neither YAML nor JSON ({error}).") from error
    try:
        return Plan.model_validate({} if document is None else document)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in describe_problems(error))
        raise InvalidPlan(f"plan: mend these fields of {path}:\n{problems}") from error
