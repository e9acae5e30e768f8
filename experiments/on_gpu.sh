#!/usr/bin/env bash
# What only a GPU gives, also on a machine that has no package index: experiments/gpu/on_gpu.py, or another command.
#
#   on_gpu.sh wheels FOLDER [PACKAGE ...]   on a machine with an index: fill a folder with wheels
#   on_gpu.sh run FOLDER|- [WORD ...]       on the machine with the GPU: install from the folder, and run on_gpu.py
#   on_gpu.sh with FOLDER|- COMMAND ...     the same for another command, such as flaxformer bench accelerator
#
# Without packages, `wheels` takes all that a bare Python lacks, JAX for CUDA included (4 GB); for a machine that has JAX,
# name those that it lacks, and pip's --no-deps if it has what they need. TARGET (default 3.12) is the Python version of
# the wheels. PYTHON (default python3) is the interpreter on the GPU's machine, whose packages are used; VENV (default
# .venv-gpu) is made there. With - for the folder, PYTHON is used as it is.
set -euo pipefail
began=$(date +%s)

usage() {
  sed -n '4,6s/^# *//p' "$0" >&2
  exit 2
}

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-gpu}
TARGET=${TARGET:-3.12}
repository=$(cd "$(dirname "$0")/.." && pwd)

[ $# -ge 2 ] || usage
command=$1 folder=$2
shift 2

fill() {
  [ $# -gt 0 ] || set -- 'flaxformer[cuda,translation]'
  mkdir -p "$folder"
  "$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$repository"
  # pip compares platforms letter by letter: all that a machine with glibc 2.35 takes.
  local platforms=(--platform manylinux1_x86_64 --platform manylinux2010_x86_64 --platform manylinux2014_x86_64) minor
  for minor in {35..5}; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
  "$PYTHON" -m pip download --quiet --dest "$folder" --find-links "$folder" --only-binary=:all: \
    --python-version "$TARGET" "${platforms[@]}" "$@"
  for word in "$@"; do case $word in -*) ;; *) echo "$word" ;; esac; done >"$folder/packages.txt"
  du -sh "$folder"
}

install() {
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "PYTHON is '$PYTHON', of a version below 3.11; expected 3.11 or later" >&2; exit 2; }
  compgen -G "$folder/flaxformer-*.whl" >/dev/null ||
    { echo "folder is '$folder', which has no wheel of flaxformer; fill it with: $0 wheels $folder" >&2; exit 2; }
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  # The packages of PYTHON are seen after those of the new environment, also if PYTHON is of an environment itself.
  "$PYTHON" - "$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'END'
import pathlib, site, sys, sysconfig
paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(paths)]
(pathlib.Path(sys.argv[1]) / "of_the_machine.pth").write_text("\n".join(lines) + "\n")
END
  local packages
  mapfile -t packages <"$folder/packages.txt"
  "$VENV/bin/python" -m pip install --quiet --no-index --find-links "$folder" --force-reinstall --no-deps flaxformer
  "$VENV/bin/python" -m pip install --quiet --no-index --find-links "$folder" flaxformer "${packages[@]}"
  export PATH="$(cd "$VENV/bin" && pwd):$PATH"
}

case $command in
wheels) fill "$@" ;;
run | with)
  [ "$folder" = - ] || install
  if [ "$command" = with ]; then
    [ $# -gt 0 ] || usage
    exec "$@"
  fi
  [ "$folder" = - ] || PYTHON=python
  exec "$PYTHON" "$repository/experiments/gpu/on_gpu.py" --began "$began" "$@"
  ;;
*) usage ;;
esac
