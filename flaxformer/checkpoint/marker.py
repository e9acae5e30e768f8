"""The file that marks a step as published: its contents, and digests to verify them."""

import dataclasses
import json

from flaxformer.checkpoint.errors import DamagedStepError
from flaxformer.checkpoint.leaves import Leaf, digest
from flaxformer.system.json_reader import parse_json

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
    """Digest of every file that Orbax wrote; files that have changed are not passed to Orbax."""

    def encode(self) -> bytes:
        """Return the marker as JSON with a digest of its own."""
        rows = {name: [list(leaf.shape), leaf.dtype, self.digests[name]] for name, leaf in self.leaves.items()}
        body = {"format": FORMAT, "step": self.step, "metrics": self.metrics, "files": self.files, "leaves": rows}
        return json.dumps({"digest": digest(_text(body)), "body": body}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, step: int) -> "Marker":
        """Return the marker of JSON that `encode` wrote.

        Raises:
          DamagedStepError: the data are not those that `encode` wrote for this step.
        """
        try:
            document = parse_json(data)
            body = document["body"]
            if document["digest"] != digest(_text(body)):
                raise DamagedStepError(f"{NAME} does not match its digest")
            if (body["format"], body["step"]) != (FORMAT, step):
                raise DamagedStepError(
                    f"{NAME} is of format {body['format']}, step {body['step']}; expected {FORMAT}, {step}"
                )
            leaves = {name: Leaf(tuple(shape), dtype) for name, (shape, dtype, _) in body["leaves"].items()}
            digests = {name: leaf_digest for name, (_, _, leaf_digest) in body["leaves"].items()}
            return cls(step, body["metrics"], leaves, digests, body["files"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedStepError(f"{NAME} is incomplete ({error})") from None


def _text(body: object) -> bytes:
    return json.dumps(body, sort_keys=True).encode()
