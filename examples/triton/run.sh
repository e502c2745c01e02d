#!/usr/bin/env bash
# Mounts a model repository and runs Triton on it; when Triton ends, or Ctrl-C is pressed, the mount goes too.
#
# usage: examples/triton/run.sh URL MOUNTPOINT [TRITONSERVER-OPTIONS…]
#
#   examples/triton/run.sh s3://models/triton /mnt/models --model-control-mode=poll --repository-poll-secs=30
#
# d7yfs takes its settings from D7YFS_… variables, such as D7YFS_PROXY=http://127.0.0.1:4001. D7YFS and TRITONSERVER name the programs
# where they are not on the PATH.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
url=$1 point=$2
shift 2
d7yfs=${D7YFS:-d7yfs}

"$d7yfs" check "$url" "$point"   # says what is wrong before a model server says less
"$d7yfs" mount "$url" "$point"

server=
stop() {
    trap - EXIT
    if [ -n "$server" ]; then
        kill -TERM "$server" 2>/dev/null || true
        wait "$server" || true
    fi
    # A model's own process may outlive the server by a moment: files that it has open stay readable to it.
    "$d7yfs" umount "$point" 2>/dev/null || "$d7yfs" umount --lazy "$point"
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

"${TRITONSERVER:-tritonserver}" --model-repository="$point" "$@" &
server=$!
wait "$server"
