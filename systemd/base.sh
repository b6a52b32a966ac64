# The system user that serves and the folders of eyas. Each line may be repeated.
set -e
id -u eyas >/dev/null 2>&1 ||
    useradd --system --no-create-home --home-dir /var/lib/eyas --shell /usr/sbin/nologin eyas
for group in video render; do
    ! getent group "$group" >/dev/null || usermod -aG "$group" eyas
done
install -d -m 0755 /opt/eyas /opt/eyas/lib /opt/eyas/locks /opt/eyas/envs
for folder in releases weights current baselines lock; do
    install -d -m 0755 /var/lib/eyas "/var/lib/eyas/$folder"
done
install -d -m 0700 /etc/eyas /etc/eyas/credentials
