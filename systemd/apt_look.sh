# What apt and dpkg know, read only. Arguments: the folder for eyas's mark, then package names.
export LC_ALL=C
mark=$1
shift
echo "@@ policy"
apt-cache -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= policy -- "$@" 2>/dev/null
echo "@@ interrupted"
dpkg --audit 2>/dev/null | grep '^ '
ls -A /var/lib/dpkg/updates 2>/dev/null | grep -E '^[0-9]+$' | sed 's/^/ unfinished journal /'
echo "@@ free"
df -B1 --output=target,avail /usr /var/cache/apt /boot 2>/dev/null | tail -n +2
echo "@@ mark"
[ -e "$mark" ] && echo yes
exit 0
