# Run apt so that it ends its work even when the operator's connection is lost: only tee meets the broken pipe.
# Arguments: the log, then the command.
set -o pipefail
log=$1
shift
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 APT_LISTCHANGES_FRONTEND=none
printf '%s %s\n' "$(date -u +%FT%TZ)" "$*" >> "$log"
"$@" 2>&1 < /dev/null | tee -p -a "$log"
