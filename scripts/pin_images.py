"""Pins base images by digest: `NAME:TAG` becomes `NAME:TAG@sha256:...` in the Dockerfile, docker-compose.yml
and the manifests of Kubernetes. Needs skopeo and a registry that answers.

python scripts/pin_images.py           says which images are not pinned, or by an old digest; status 1 then
python scripts/pin_images.py --write   pins them
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
FILES = ("Dockerfile", "docker-compose.yml", "deploy/**/*.yaml")
IMAGE = re.compile(r"^(\s*(?:-\s*)?image:\s*|FROM\s+)([\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?", re.M)
OURS = "asap-sharding"
UNREACHED = 3
"""Exit status: nothing can be said here."""


def find_images(folder: Path) -> dict[Path, list[tuple[str, str]]]:
    """Of each file its images with their digests, which are empty if there are none."""
    paths = sorted(path for pattern in FILES for path in folder.glob(pattern))
    found = {path: [match.group(2, 3) for match in IMAGE.finditer(path.read_text())] for path in paths}
    return {
        path: [(image, digest or "") for image, digest in images if not image.startswith(OURS)]
        for path, images in found.items()
    }


def current_digest(image: str) -> str | None:
    """Of the index of all platforms; None if no registry answers."""
    command = ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{image}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    digest = answer.stdout.strip()
    return f"@{digest}" if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else None


def pin(path: Path, digests: dict[str, str]) -> None:
    path.write_text(
        IMAGE.sub(lambda m: m[1] + m[2] + digests.get(m[2], m[3] or ""), path.read_text())  # others stay
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--folder", type=Path, default=REPO)
    args = parser.parse_args()
    found = find_images(args.folder)
    images = sorted({image for listed in found.values() for image, _ in listed})
    if not shutil.which("skopeo"):
        print("pin_images: needs skopeo, which Debian and Fedora have as a package", file=sys.stderr)
        return UNREACHED
    digests = {image: digest for image in images if (digest := current_digest(image))}
    if not digests:
        print(f"pin_images: no registry answers; {len(images)} images cannot be looked up", file=sys.stderr)
        return UNREACHED
    if args.write:
        for path in found:
            pin(path, digests)
    wrong = [
        f"{path.relative_to(args.folder)}: {image}{digest}; the registry has {digests.get(image)}"
        for path, listed in (find_images(args.folder) if args.write else found).items()
        for image, digest in listed
        if digest != digests.get(image)
    ]
    print("\n".join(wrong or [f"{len(images)} images are pinned to what the registry has"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
