# Build one environment: env folder, base python, uv, lock file, work file (hold_lock.py), uv's source options.
# The proof file is written later by prove_env.py, so a torn install has none and is built again from nothing.
set -e
env=$1; python=$2; uv=$3; lock=$4; work=$5; shift 5
exec 9>>"$work"
rm -rf -- "$env"
mkdir -p -- "$(dirname -- "$env")"
echo 'eyas: making the environment'
"$uv" venv --quiet --no-config --python "$python" --no-project "$env" </dev/null
echo 'eyas: installing wheels'
"$uv" pip install --no-config --python "$env/bin/python" --require-hashes --no-deps --no-cache \
    --link-mode copy -r "$lock" "$@" </dev/null
# The service user cannot write __pycache__: without this each start compiles everything again.
echo 'eyas: compiling bytecode'
"$env/bin/python" -m compileall -q -j 0 "$env/lib" >/dev/null 2>&1 </dev/null || true
