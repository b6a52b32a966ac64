#!/bin/sh
# Runs once inside a fresh root file system (chroot), before it is cached.
set -eu

: > /etc/machine-id                       # every clone gets its own
rm -f /etc/ssh/ssh_host_* /etc/resolv.conf /etc/hostname /var/lib/dbus/machine-id
touch /etc/resolv.conf                    # no resolver: there is nothing to resolve to
mkdir -p /var/log/journal /etc/eyas-lab /var/lib/eyas-lab /opt/eyas-lab/apt
printf '%s\n' 'LANG=C.UTF-8' > /etc/default/locale

# The only package source a host has: stand-in driver packages, on its own disk.
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/opt/eyas-lab/apt ./' > /etc/apt/sources.list.d/eyas-lab.list
: > /opt/eyas-lab/apt/Packages
apt-get update -q > /dev/null 2>&1

echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/eyas-lab   # a host is soon gone: its packages needn't be synced

useradd --create-home --shell /bin/bash --comment 'lab operator' op
install -d -m 700 -o op -g op /home/op/.ssh
install -d -m 700 /root/.ssh

cat > /etc/ssh/sshd_config.d/eyas-lab.conf <<'EOF'
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
MaxStartups 200:30:400
EOF

# A user manager per login would cost 0.1 s and several of the machine's few inotify instances.
sed -i '/pam_systemd\.so/d' /etc/pam.d/common-session

systemctl disable ssh.socket > /dev/null 2>&1 || true
systemctl enable ssh.service > /dev/null 2>&1
for unit in getty.target console-getty.service apt-daily.timer apt-daily-upgrade.timer fstrim.timer \
    dpkg-db-backup.timer e2scrub_all.timer sshd-keygen.service dev-hugepages.mount dev-mqueue.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \
    systemd-update-utmp.service systemd-pcrphase.service motd-news.timer man-db.timer e2scrub_reap.service \
    systemd-network-generator.service networking.service systemd-resolved.service systemd-timesyncd.service
do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done

# The kernel log of a lab host is what the lab puts into it; the real one is the machine's and not readable.
cat > /usr/local/bin/dmesg <<'EOF'
#!/bin/sh
[ "$(id -u)" = 0 ] || { echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1; }
journalctl -k -b --no-pager -q -o short-monotonic | sed -E 's/^(\[ *[0-9.]+\]) [^ ]+ kernel: /\1 /'
EOF
chmod 755 /usr/local/bin/dmesg

rm -rf /usr/share/doc/* /usr/share/man/* /usr/share/locale/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
