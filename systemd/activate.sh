# Make one release the served one: release folder, current link, unit name, former release folder (or "").
# Returns when it has answered a completion, or fails as soon as the engine is dead. Each step may be repeated.
# With a former release, this very script puts it back when the new one fails (exit 76: it serves again, 77: it
# does not), so that an operator or a network that is gone meanwhile changes nothing. A switch that a reboot
# cut off leaves its former release noted; the next switch knows it from there.
# A switch that is no part of a bench ("bench" as the last word) leaves no way back to what was before one.
set -e
trap '' PIPE HUP

point() {
    for file in "$unit.service" "$unit-health.service" "$unit-health.timer" "$unit-ray.service"; do
        [ "$file" != "$unit-ray.service" ] || [ -f "$1/$file" ] || { no_ray || return 1; continue; }
        temp=$(mktemp "/etc/systemd/system/.$file.XXXXXX") &&
            cat "$1/$file" >"$temp" &&
            chmod 0644 "$temp" &&
            sync "$temp" &&
            mv -f -T "$temp" "/etc/systemd/system/$file" || { rm -f "$temp"; return 1; }
    done
    mkdir -p "$(dirname "$link")" &&
        rm -f "$link.new" &&
        ln -s "$1" "$link.new" &&
        mv -T "$link.new" "$link" &&
        sync "$(dirname "$link")"
}

# A release without a Ray head of its own on this host leaves none behind.
no_ray() {
    [ ! -e "/etc/systemd/system/$unit-ray.service" ] || {
        systemctl disable --now --quiet "$unit-ray.service"
        rm -f "/etc/systemd/system/$unit-ray.service"
    }
}

# Drop-ins of this unit are drift: kept where nothing reads them.
set_aside() {
    for folder in /etc/systemd/system /run/systemd/system /etc/systemd/system.control /run/systemd/system.control; do
        [ ! -d "$folder/$unit.service.d" ] || {
            mkdir -p /var/lib/eyas/set-aside &&
                mv -T "$folder/$unit.service.d" "/var/lib/eyas/set-aside/$unit.service.d.$(date +%s%N)"
        } || return 1
    done
}

serve() {
    set_aside &&
        point "$1" &&
        systemctl daemon-reload &&
        systemctl enable --quiet "$unit.service" "$unit-health.timer" &&
        { systemctl reset-failed "$unit.service" 2>/dev/null || true; } &&
        systemctl restart "$unit.service" &&
        systemctl restart "$unit-health.timer"
}

main() {
    release=$1; link=$2; unit=$3; former=$4
    [ -f "$release/release.json" ] || { echo "no release in $release" >&2; exit 66; }
    exec 8>>/var/lib/eyas/lock/switch
    flock -w 1800 8 || { echo "another switch on this host does not end" >&2; exit 75; }
    noted=/var/lib/eyas/former/$(basename "$link")
    [ "$former" = noted ] && former=$(readlink "$noted" 2>/dev/null || true)
    [ -f "$former/release.json" ] && [ "$former" != "$release" ] || former=
    mkdir -p /var/lib/eyas/former
    [ -z "$former" ] || ln -sfn "$former" "$noted"
    if serve "$release"; then
        rm -f "$noted"
        [ "${5:-}" = bench ] || rm -f "/var/lib/eyas/bench/$(basename "$link").json"
        exit 0
    fi
    # The journal of this start, for whoever explains the failure.
    echo "eyas-failed $(systemctl show -P InvocationID "$unit.service")" || true
    [ -n "$former" ] || exit 1
    serve "$former" || exit 77
    rm -f "$noted"
    exit 76
}

main "$@"
