"""The public names of the last release with their signatures.

`make names` compares them with the present ones; `python -m docs.names --write` records the present ones.
"""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import riskmin

RECORD = Path(__file__).with_name("names.json")


def signature(public_object: Any) -> str:
    """Return the signature without annotations and addresses."""
    try:
        full = inspect.signature(public_object)
    except (TypeError, ValueError):
        return repr(type(public_object).__name__)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in full.parameters.values()]
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(bare)))


def names() -> dict[str, str]:
    """Return every public name and public method with its signature."""
    found = {}
    for name in sorted(riskmin.__all__):
        public_object = getattr(riskmin, name)
        if inspect.ismodule(public_object):
            continue
        found[name] = signature(public_object)
        if inspect.isclass(public_object):
            for method, f in inspect.getmembers(public_object, callable):
                if not method.startswith("_") and getattr(f, "__module__", "").startswith("riskmin"):
                    found[f"{name}.{method}"] = signature(f)
    return found


def main() -> int:
    """Print what changed since the last release; return 1 if a name is gone or has another signature."""
    now = names()
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return 0
    then = json.loads(RECORD.read_text(encoding="utf-8"))
    changed = {name: now.get(name) for name in then if now.get(name) != then[name]}
    for name, text in changed.items():
        print(f"{name}{then[name]} -> {'gone' if text is None else name + text}")
    print(f"{len(now.keys() - then.keys())} new names, {len(changed)} changed")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
