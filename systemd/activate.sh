# Make one release the served one: release folder, current link, unit name, former release folder (or "").
# Returns when it has answered a completion, or fails as soon as the engine is dead. Each step may be repeated.
# With a former release, this very script puts it back when the new one fails (exit 76: it serves again, 77: it
# does not, 79: it is back in place and waits for the other hosts of its group), so that an operator or a network
# that is gone meanwhile changes nothing. A switch that a reboot cut off leaves its former release noted; the next
# switch knows it from there.
# A switch that is no part of a bench ("bench" as the last word) leaves no way back to what was before one.
# Both ways are written out before the first step (exit 78: they can't be, nothing was touched): a disk that
# fills up meanwhile can't keep the former release from coming back.
set -e
trap '' PIPE HUP

# stage RELEASE WAY: its units and its link, complete and on disk under names that nothing reads.
stage() {
    for file in "$unit.service" "$unit-health.service" "$unit-health.timer" "$unit-ray.service"; do
        temp=/etc/systemd/system/.$file.$2
        [ "$file" != "$unit-ray.service" ] || [ -f "$1/$file" ] || { rm -f "$temp"; continue; }
        cat "$1/$file" >"$temp" && chmod 0644 "$temp" && sync "$temp" || return 1
    done
    mkdir -p "$(dirname "$link")" && ln -sfn "$1" "$noted.$2"
}

# point WAY: only renames.
point() {
    for file in "$unit.service" "$unit-health.service" "$unit-health.timer" "$unit-ray.service"; do
        temp=/etc/systemd/system/.$file.$1
        [ "$file" != "$unit-ray.service" ] || [ -f "$temp" ] || { no_ray || return 1; continue; }
        mv -f -T "$temp" "/etc/systemd/system/$file" || return 1
    done
    mv -T "$noted.$1" "$link" && sync "$(dirname "$link")"
}

unstage() {
    for way in new back; do
        rm -f "/etc/systemd/system/.$unit.service.$way" "/etc/systemd/system/.$unit-health.service.$way" \
            "/etc/systemd/system/.$unit-health.timer.$way" "/etc/systemd/system/.$unit-ray.service.$way" "$noted.$way"
    done
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
        "$2" &&
        systemctl restart "$unit-health.timer"
}

restart() {
    systemctl restart "$unit.service"
}

# One host of several on its way back can't serve before the others are there too, and one of them may be gone:
# that is no reason to keep whoever waits for this switch.
restart_back() {
    [ -f "$former/ranked.py" ] || { restart; return; }
    systemctl restart --no-block "$unit.service" || return 1
    alone=0
    while [ "$alone" -lt 20 ]; do
        sleep 1
        case $(systemctl is-active "$unit.service") in
            active) return 0 ;;
            failed) return 1 ;;
        esac
        [ "$(systemctl show -P NRestarts "$unit.service")" -lt 3 ] || return 1
        told=$(cat "/run/$unit/group.json" 2>/dev/null || true)
        case $told in
            *'has release'*) alone=0 ;;
            *'"state": "waiting"'*) alone=$((alone + 1)) ;;
            *) alone=0 ;;
        esac
    done
    waits=yes
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
    { [ -z "$former" ] || { ln -sfn "$former" "$noted" && stage "$former" back; }; } && stage "$release" new || {
        unstage
        exit 78
    }
    if serve new restart; then
        unstage
        rm -f "$noted"
        [ "${5:-}" = bench ] || rm -f "/var/lib/eyas/bench/$(basename "$link").json"
        exit 0
    fi
    # The journal of this start, for whoever explains the failure.
    echo "eyas-failed $(systemctl show -P InvocationID "$unit.service")" || true
    [ -n "$former" ] || exit 1
    waits=no
    serve back restart_back || exit 77
    unstage
    rm -f "$noted"
    [ $waits = no ] || exit 79
    exit 76
}

main "$@"
