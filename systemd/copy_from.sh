# A folder from another host: work file, source, folder here, port, then words for rsync. The key to log in with
# and the source's host keys come on stdin, stay in memory (/run) and are gone when this ends, however it ends.
# Who takes the host's lock next ends this by the work file (hold_lock.py).
set -e
umask 077
work=$1 source=$2 into=$3 port=$4
shift 4
kept=$(mktemp -d /run/eyas-copy.XXXXXX)
trap 'rm -rf "$kept"' EXIT
trap 'exit 129' HUP INT TERM PIPE
systemd-run --quiet --collect --on-active=60 --description="Takes away the key of a copy" /bin/rm -rf "$kept"
cat >"$kept/given"
sed '/^-----BEGIN/,$d' "$kept/given" >"$kept/hosts"
sed -n '/^-----BEGIN/,$p' "$kept/given" >"$kept/key"
rm "$kept/given"
umask 022
exec 9>>"$work"
mkdir -p "$into"
rsync "$@" -e "ssh -F /dev/null -i $kept/key -p $port -o IdentitiesOnly=yes -o BatchMode=yes \
    -o StrictHostKeyChecking=yes -o ConnectTimeout=10 -o Ciphers=^aes128-gcm@openssh.com -o ServerAliveInterval=10 -o ServerAliveCountMax=3 \
    -o UserKnownHostsFile=$kept/hosts -o GlobalKnownHostsFile=/dev/null" "$source/" "$into/" </dev/null
