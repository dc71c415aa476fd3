"""Compares objects of the Prometheus operator and Istio's security with the operators' own models.

Usage: `check_operator_objects.py FILE…`, in the environment of scripts/check-deploy.txt. Exits 1 naming
what is wrong.
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from cloudcoil.models.istio.security.v1 import PeerAuthentication
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
from pydantic import BaseModel, ValidationError

MODELS: dict[str, type[BaseModel]] = {
    "PeerAuthentication": PeerAuthentication,
    "PodMonitor": PodMonitor,
    "PrometheusRule": PrometheusRule,
}


def unknown_fields(known: Any, written: Any, path: str) -> list[str]:
    """Return where something was written that the model does not know."""
    if isinstance(written, dict) and isinstance(known, dict):
        return [
            problem
            for name, value in written.items()
            for problem in (
                unknown_fields(known[name], value, f"{path}.{name}")
                if name in known
                else [f"{path}.{name}: unknown"]
            )
        ]
    if isinstance(written, list) and isinstance(known, list):
        return [
            problem
            for index, (one, value) in enumerate(zip(known, written, strict=True))
            for problem in unknown_fields(one, value, f"{path}[{index}]")
        ]
    return []


def problems_of(document: dict[str, Any]) -> list[str]:
    """Return what is wrong with one object."""
    name = f"{document['kind']}/{document['metadata']['name']}"
    try:
        model = MODELS[document["kind"]].model_validate(document)
    except ValidationError as error:
        return [f"{name}: {problem['loc']}: {problem['msg']}" for problem in error.errors()]
    known = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return unknown_fields(known["spec"], document["spec"], f"{name}.spec")


def main(files: list[str]) -> int:
    """Check the objects in these files; returns the exit status."""
    documents = [one for file in files for one in yaml.safe_load_all(Path(file).read_text())]
    checked = [one for one in documents if one["kind"] in MODELS]
    problems = [problem for one in checked for problem in problems_of(one)]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(f"operators' objects: {len(checked)} checked, {len(problems)} problems\n")
    return 1 if problems or not checked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
