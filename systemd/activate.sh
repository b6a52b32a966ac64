# Make one release the served one: release folder, current link, unit name. Returns when it has answered a
# completion, or fails as soon as the engine is dead. Each step may be repeated; a kill between two leaves the
# former release pointed at or the new one, never neither.
set -e
release=$1; link=$2; unit=$3
[ -f "$release/release.json" ] || { echo "no release in $release" >&2; exit 66; }
for file in "$unit.service" "$unit-health.service" "$unit-health.timer"; do
    temp=$(mktemp "/etc/systemd/system/.$file.XXXXXX")
    cat "$release/$file" >"$temp"
    chmod 0644 "$temp"
    sync "$temp"
    mv -f -T "$temp" "/etc/systemd/system/$file"
done
mkdir -p "$(dirname "$link")"
rm -f "$link.new"
ln -s "$release" "$link.new"
mv -T "$link.new" "$link"
sync "$(dirname "$link")"
systemctl daemon-reload
systemctl enable --quiet "$unit.service" "$unit-health.timer"
systemctl reset-failed "$unit.service" 2>/dev/null || true
systemctl restart "$unit.service"
systemctl restart "$unit-health.timer"
