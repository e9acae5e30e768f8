"""The marker of a published step: what it holds, and how to tell that it still does."""

import dataclasses
import json
from typing import Any

from flaxformer.checkpoint.errors import Damaged
from flaxformer.checkpoint.leaves import Leaf, digest

NAME = "published.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Marker:
    """Record of a published step."""

    step: int
    metrics: dict[str, float | None]
    leaves: dict[str, Leaf]
    digests: dict[str, str]
    """Digest of every leaf."""
    files: dict[str, str]
    """Digests too, of every file that Orbax wrote, so that it never reads one that has changed."""

    def encoded(self) -> bytes:
        """JSON with a digest of its own."""
        rows = {name: [list(leaf.shape), leaf.dtype, self.digests[name]] for name, leaf in self.leaves.items()}
        body = {"format": FORMAT, "step": self.step, "metrics": self.metrics, "files": self.files, "leaves": rows}
        return json.dumps({"digest": digest(_text(body)), "body": body}, indent=1).encode()

    @classmethod
    def decoded(cls, data: bytes, step: int) -> "Marker":
        """The inverse of `encoded`.

        Raises:
          Damaged: anything else than what `encoded` wrote for this step.
        """
        try:
            held = json.loads(data)
            body = held["body"]
            if held["digest"] != digest(_text(body)):
                raise Damaged(f"{NAME} does not match its digest")
            if (body["format"], body["step"]) != (FORMAT, step):
                raise Damaged(f"{NAME} is of format {body['format']}, step {body['step']}")
            leaves = {name: Leaf(tuple(shape), dtype) for name, (shape, dtype, _) in body["leaves"].items()}
            digests = {name: found for name, (_, _, found) in body["leaves"].items()}
            return cls(step, body["metrics"], leaves, digests, body["files"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"{NAME} is not whole ({error})") from None


def _text(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()
