#!/usr/bin/env bash
# Before a release: the wheel and the sdist install clean, with nothing and with each extra, and say who they are.
#   recipes/release_check.sh [EXTRA...]       (PYTHON=python3.12, TORCH="torch==2.13.0", CONSTRAINTS=constraints.txt)
# Without EXTRA: none, then every one. One environment holds torch and what pivotrl itself needs; each extra gets an
# environment of its own that borrows this one through a .pth, so that pip resolves and installs only what the extra adds.
# Needs the network (a package index), about 3 GB of disk and 10 minutes on two free cores.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pip() { "$python" -m pip --disable-pip-version-check --python "$1/bin/python" "${@:2}"; }

looks_right() { # looks_right VENV EXTRA: from another folder, so that nothing comes from the source tree
  (cd "$scratch" && "$1/bin/python" -c 'import pivotrl, sys; [getattr(pivotrl, name) for name in pivotrl.__all__]; print(pivotrl.__file__)' &&
    "$1/bin/pivotrl" --version && "$1/bin/pivotrl" doctor >doctor.txt && tail -n 1 doctor.txt)
  if [[ -n $2 ]]; then grep -q "^has   $2 " "$scratch/doctor.txt"; fi
  pip "$1" check
}

"$python" -m venv --without-pip "$scratch/build"
pip "$scratch/build" install -q 'build>=1.2' 'hatchling>=1.27'
"$scratch/build/bin/python" -m build --no-isolation --outdir "$scratch/dist" . >/dev/null
wheel=$(echo "$scratch"/dist/*.whl)
sdist=$(echo "$scratch"/dist/*.tar.gz)

echo "== nothing but pivotrl, from the wheel"
"$python" -m venv --without-pip "$scratch/plain"
pip "$scratch/plain" install -q ${TORCH:-torch==2.13.0}
pip "$scratch/plain" install -q -c "${CONSTRAINTS:-constraints.txt}" "$wheel"
looks_right "$scratch/plain" ""

borrowing() { # borrowing NAME: an environment that sees all of `plain`
  local site
  "$python" -m venv --without-pip "$scratch/$1"
  site=$("$scratch/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$scratch/plain/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"
}

echo "== the sdist"
borrowing sdist
pip "$scratch/sdist" install -q --no-deps --ignore-installed "$sdist"
looks_right "$scratch/sdist" ""

extras=("$@")
if ((${#extras[@]} == 0)); then extras=(eval gguf openai parquet peft tinker track); fi
for extra in "${extras[@]}"; do
  echo "== with $extra"
  borrowing "$extra"
  pip "$scratch/$extra" install -q --no-deps --ignore-installed "$wheel"
  pip "$scratch/$extra" install -q -c "${CONSTRAINTS:-constraints.txt}" "$wheel[$extra]"
  looks_right "$scratch/$extra" "$extra"
done
echo "release check passed"
