#!/usr/bin/env bash
# flaxformer bench accelerator on a bare machine: one that has JAX, Flax, Optax and Orbax (and PyTorch, for the peers)
# for its Python, and no package index.
#
#   accelerator.sh wheels FOLDER [PACKAGE ...]   on a machine with an index: fill a folder with the wheels that are missing
#   accelerator.sh run FOLDER [WORD ...]         on the bare machine: install from the folder and run the command
#
# PYTHON (default python3) is the interpreter that has JAX. VENV (default .venv-accelerator) is made on the bare machine.
# TARGET (default 3.12) is the Python version of the wheels. The words of `run` go to `flaxformer bench accelerator`.
set -euo pipefail

usage() {
  sed -n '5,6s/^# *//p' "$0" >&2
  exit 2
}

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-accelerator}
TARGET=${TARGET:-3.12}
# What the package needs beside JAX, Flax, Optax, Orbax and NumPy.
MISSING=(jaxtyping matplotlib polars rich scipy tyro)

[ $# -ge 2 ] || usage
command=$1 folder=$2
shift 2
case $command in
wheels)
  repository=$(cd "$(dirname "$0")/../.." && pwd)
  mkdir -p "$folder"
  "$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$repository"
  "$PYTHON" -m pip download --quiet --dest "$folder" --only-binary=:all: --python-version "$TARGET" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    "${MISSING[@]}" "$@"
  echo "$@" >"$folder/packages.txt"
  du -sh "$folder"
  ;;
run)
  "$PYTHON" -c 'import jax' || { echo "PYTHON is '$PYTHON', which has no JAX; expected an interpreter that has" >&2; exit 2; }
  compgen -G "$folder/flaxformer-*.whl" >/dev/null || {
    echo "folder is '$folder', which has no wheel of flaxformer; fill it with: $0 wheels $folder" >&2
    exit 2
  }
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  # The packages of PYTHON are seen after those of the new environment, also if PYTHON is of an environment itself.
  own=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$PYTHON" - "$own/of_the_machine.pth" <<'END'
import pathlib, site, sys, sysconfig
paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(paths)]
pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
END
  "$VENV/bin/python" -m pip install --quiet --no-index --find-links "$folder" --force-reinstall --no-deps flaxformer
  more=()
  [ ! -f "$folder/packages.txt" ] || read -ra more <"$folder/packages.txt"
  "$VENV/bin/python" -m pip install --quiet --no-index --find-links "$folder" flaxformer "${more[@]}"
  exec "$VENV/bin/flaxformer" bench accelerator "$@"
  ;;
*) usage ;;
esac
