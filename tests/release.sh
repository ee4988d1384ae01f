#!/usr/bin/env bash
# Build both distributions and try them: tests/release.sh [--borrow] [PYTHON...]
# $BIN/python has `build` and `twine`. Every PYTHON gets a bare environment; with --borrow it takes its dependencies from
# $BIN, and nothing is fetched but what builds. DOCS names an environment with mkdocs, if any; WORK a folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${BIN:-$root/.venv-release/bin} work=${WORK:-$(mktemp -d)} borrow=
[ "${1:-}" = --borrow ] && { borrow=yes; shift; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
fail() { echo "release: $*" >&2; exit 1; }
quiet="--quiet --disable-pip-version-check"

grep -q "^## \[$version\]" "$root/CHANGELOG.md" || fail "CHANGELOG.md has no entry of $version"
rm -rf "$work/dist" && mkdir -p "$work/dist"
"$bin/python" -m build --outdir "$work/dist" "$root" > "$work/build.log" 2>&1 || { cat "$work/build.log"; fail "the build"; }
"$bin/python" -m build --outdir "$work/dist" "$root/workbench" >> "$work/build.log" 2>&1 || fail "the build of the workbench"
"$bin/python" -m twine check --strict "$work"/dist/*
mkdir -p "$work/pure" "$work/sdist"
tar -xzf "$work/dist/outlines_phi-$version.tar.gz" -C "$work/sdist"
CC=/bin/false "$bin/python" -m pip wheel $quiet --no-deps -w "$work/pure" "$work/sdist/outlines_phi-$version"
compiled=$(echo "$work"/dist/outlines_phi-"$version"-py3-*.whl) pure=$(echo "$work"/pure/*-py3-none-any.whl)
for wheel in "$compiled" "$pure"; do unzip -l "$wheel" | grep outlines_phi/py.typed > /dev/null || fail "no py.typed in $wheel"; done
if command -v cc > /dev/null; then unzip -l "$compiled" | grep 'vocabulary/walk.so' > /dev/null || fail "no kernel in $compiled"; fi
unzip -l "$pure" | grep '\.so$' > /dev/null && fail "a library in $pure"
if [ -n "${DOCS:-}" ]; then
  (cd "$work/sdist/outlines_phi-$version" && NO_MKDOCS_2_WARNING=1 "$DOCS/bin/mkdocs" build --quiet) && echo "docs: built from the sdist"
fi

# The code of the README, from a folder without the sources.
mkdir -p "$work/empty" && cd "$work/empty"
awk '/^```python$/ {on = 1; next} /^```$/ {on = 0} on' "$root/README.md" > readme.py
export OMP_NUM_THREADS=1 OUTLINES_PHI_CACHE= HF_HUB_OFFLINE=1
unset PYTHONPATH
for python in "$@"; do
  venv=$work/$(basename "$(dirname "$(dirname "$(command -v "$python")")")")-venv
  [ -d "$venv" ] || "$python" -m venv "$venv"
  with=("$work"/dist/*.whl)
  if [ -n "$borrow" ]; then
    "$bin/python" -c 'import site; print(site.getsitepackages()[0])' > "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
    with=(--no-deps --force-reinstall "${with[@]}")
  fi
  "$venv/bin/pip" install $quiet "${with[@]}"
  "$venv/bin/outlines-phi" --version | grep -x "outlines-phi $version" > /dev/null || fail "--version in $venv"
  "$venv/bin/outlines-phi" verify --help > /dev/null || fail "no command of the workbench in $venv"
  "$venv/bin/python" readme.py || fail "the README's code in $venv"
  kernel='from outlines_phi.vocabulary.kernel import library; import outlines_phi; print(outlines_phi.__file__, bool(library()))'
  "$venv/bin/python" -c "$kernel" | grep "^$venv.* True$" > /dev/null || fail "the kernel of $compiled is not used in $venv"
  "$venv/bin/pip" install $quiet --no-deps --force-reinstall "$pure"
  "$venv/bin/python" -c "$kernel" 2> pure.log | grep "^$venv.* False$" > /dev/null || fail "a kernel in the pure wheel"
  "$venv/bin/python" readme.py || fail "the README's code on the pure wheel in $venv"
  [ ! -s pure.log ] || { cat pure.log; fail "the pure wheel is not silent in $venv"; }
  echo "$("$venv/bin/python" -V): both wheels, the README's code"
done
