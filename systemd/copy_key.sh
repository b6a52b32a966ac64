# The key of copies from host to host, on a source: one line of the login user's authorized_keys.
#   sweep [NAME]                 take away lines that have expired, the line of key NAME (every: of any key), and
#                                keys that targets kept
#   allow SECONDS FOLDER PUBLIC  let PUBLIC (it ends with its name) read FOLDER, for logins in the next SECONDS;
#                                prints the user to log in as
# A line says itself until when it holds, by this host's clock, and a timer of this host takes it away soon after:
# an operator that is gone leaves nothing that lasts. `sweep` prints "rsync" when this host can give and take.
set -e
umask 077
user=${SUDO_USER:-$(id -un)}
keys=$(readlink -m "$(getent passwd "$user" | cut -d: -f6)/.ssh/authorized_keys")
now=$(env -u TZ date +%Y%m%d%H%M%S)

# Everything but expired lines and those of key $1; a full disk must not cost the user his own keys.
rest() {
    awk -v now="$now" -v name="$1" '
        / copy-[0-9a-f]+$/ && match($0, /expiry-time="[0-9]+"/) {
            if (name == "every" || $NF == name || substr($0, RSTART + 13, RLENGTH - 14) + 0 < now + 0) next
        }
        { print }' "$keys"
}

# The new content of the file, from stdin.
replace() {
    temp=$(mktemp "$keys.XXXXXX")
    trap 'rm -f "$temp"' EXIT
    cat >"$temp"
    [ "$(tail -n 1 "$temp")" = "# eyas: whole" ] || { echo "$keys could not be written" >&2; exit 1; }
    sed -i '$d' "$temp"
    chmod --reference="$keys" "$temp" && chown --reference="$keys" "$temp" && sync "$temp" && mv -f -T "$temp" "$keys"
    trap - EXIT
}

alone() {
    exec 9<"$(dirname "$keys")"
    flock -w 20 9
}

sweep() {
    find /run -maxdepth 1 -name 'eyas-copy.*' -mmin +10 -exec rm -rf {} +
    if [ -f "$keys" ] && grep -Eq ' copy-[0-9a-f]+$' "$keys"; then
        alone
        { rest "$1" && echo "# eyas: whole"; } | replace
    fi
}

allow() {
    folder=$(dirname "$keys")
    [ -d "$folder" ] || install -d -m 0700 -o "$user" -g "$(id -g "$user")" "$folder"
    alone
    [ -f "$keys" ] || install -m 0600 -o "$user" -g "$(id -g "$user")" /dev/null "$keys"
    until=$(env -u TZ date -d "+$1 seconds" +%Y%m%d%H%M%S)
    systemd-run --quiet --collect --on-active="$(($1 + 15))" --timer-property=AccuracySec=1s \
        --description="Takes away the key of a copy between hosts" --setenv=SUDO_USER="$user" \
        /bin/sh "$0" sweep
    { rest "${3##* }" && echo "restrict,expiry-time=\"$until\",command=\"rrsync -ro $2\" $3" &&
        echo "# eyas: whole"; } | replace
    echo "$user"
}

case $1 in
sweep) sweep "$2"; ! command -v rsync >/dev/null || ! command -v rrsync >/dev/null || echo rsync ;;
allow) allow "$2" "$3" "$4" ;;
esac
