# Build one environment: env folder, base python, uv, lock file, work file (hold_lock.py), uv's source options.
# It stands beside the one it is for and may be moved: place_env.py puts it there once prove_env.py has
# written its proof, so what serves is never torn. Compiled files name the place it will have.
set -e
env=$1; python=$2; uv=$3; lock=$4; work=$5; shift 5
exec 9>>"$work"
new=$(dirname -- "$env")/.$(basename -- "$env").new
rm -rf -- "$new"
mkdir -p -- "$(dirname -- "$env")"
echo 'eyas: making the environment'
"$uv" venv --quiet --no-config --no-cache --python "$python" --no-project --relocatable "$new" </dev/null
echo 'eyas: installing wheels'
# Unpacked here and linked into place: elsewhere (in /tmp) all of it would lie on a disk for a second time.
"$uv" pip install --no-config --python "$new/bin/python" --require-hashes --no-deps \
    --cache-dir "$new/.unpacked" --link-mode hardlink -r "$lock" "$@" </dev/null
rm -rf -- "$new/.unpacked"
# The service user cannot write __pycache__: without this each start compiles everything again.
echo 'eyas: compiling bytecode'
"$new/bin/python" -m compileall -q -j 0 -s "$new" -p "$env" "$new/lib" >/dev/null 2>&1 </dev/null || true
