# Make a staged configuration the running one: staged folder, folder, kind, HAProxy (or ""), key file.
# The former files are kept until the router runs with the new ones; when it does not, they are put back.
# Exit 65: the new one is not valid, nothing was touched; 75: somebody drains meanwhile; 76: the former one runs
# again; 77: it does not.
set -e
trap '' PIPE HUP
staged=$1; folder=$2; kind=$3; haproxy=$4; key=$5
unit=eyas_router.service
there=/etc/systemd/system/$unit
[ "$kind" = haproxy ] && patience=15 || patience=90

valid() {
    [ "$kind" = haproxy ] || return 0
    keys=$(mktemp -d) && cp "$key" "$keys/api-key.map" &&
        CREDENTIALS_DIRECTORY=$keys "$haproxy" -Ws -c -q -f "$1/haproxy.cfg" >&2
    code=$?
    rm -rf "$keys"
    return $code
}

# Files of the service's folder and its unit from $1; what $1 lacks is removed.
place() {
    mkdir -p "$folder" && chmod 0755 "$folder" || return 1
    for file in router.json haproxy.cfg router_ctl.py router_serve.py; do
        if [ -f "$1/$file" ]; then
            cat "$1/$file" >"$folder/.$file.new" && chmod 0644 "$folder/.$file.new" &&
                sync "$folder/.$file.new" && mv -f "$folder/.$file.new" "$folder/$file" || return 1
        else
            rm -f "$folder/$file"
        fi
    done
    [ -f "$1/$unit" ] || { systemctl disable --now --quiet "$unit" 2>/dev/null; rm -f "$there"; return 0; }
    cmp -s "$1/$unit" "$there" || {
        cat "$1/$unit" >"$there.new" && chmod 0644 "$there.new" && sync "$there.new" && mv -f "$there.new" "$there"
    }
}

# A changed unit needs a restart, which lets streams end; anything else is a reload, which ends none.
run() {
    systemctl daemon-reload && systemctl enable --quiet "$unit" || return 1
    systemctl reset-failed "$unit" 2>/dev/null || true
    if [ "$1" = reload ] && systemctl is-active --quiet "$unit"; then
        # What a unit runs to reload has no credentials before systemd 253.
        if [ "$kind" = haproxy ]; then systemctl reload "$unit"; else python3 -sEB "$folder/router_ctl.py" sync >&2; fi
    else
        systemctl restart "$unit"
    fi && python3 -sEB "$folder/router_ctl.py" wait "$patience" >&2
}

how=reload
cmp -s "$staged/$unit" "$there" || how=restart
for scope in /etc/systemd/system /run/systemd/system /etc/systemd/system.control /run/systemd/system.control; do
    [ ! -d "$scope/$unit.d" ] || {
        how=restart
        mkdir -p /var/lib/eyas/set-aside
        mv -T "$scope/$unit.d" "/var/lib/eyas/set-aside/$unit.d.$(date +%s%N)"
    }
done
valid "$staged" || { rm -rf "$staged"; exit 65; }
exec 8>>/var/lib/eyas/lock/router
flock -w 60 8 || { echo "somebody drains or restores for too long" >&2; exit 75; }
drained='import json, sys; print(json.load(open(sys.argv[1]))["drained"])'
if [ -f "$folder/router.json" ] && [ -f "$there" ]; then
    [ "$(python3 -c "$drained" "$folder/router.json")" = "$(python3 -c "$drained" "$staged/router.json")" ] ||
        { echo "somebody drained or restored meanwhile" >&2; exit 75; }
fi
former=$folder.former
rm -rf "$former"
mkdir -p "$former"
for file in router.json haproxy.cfg router_ctl.py router_serve.py; do
    [ ! -f "$folder/$file" ] || cp -p "$folder/$file" "$former/"
done
[ ! -f "$there" ] || cp -p "$there" "$former/"
if place "$staged" && run "$how"; then
    rm -rf "$staged" "$former"
    exit 0
fi
journalctl --no-pager -b -o cat -n 15 -u "$unit" >&2 || true
place "$former" || exit 77
[ -f "$former/$unit" ] || { rm -rf "$staged"; systemctl daemon-reload; exit 1; }
run "$how" || exit 77
rm -rf "$staged"
exit 76
