#!/usr/bin/env bash
# A Slurm cluster of one controller and two node daemons, n1 and n2, on this machine, for as long as
# a command runs:
#
#     tests/support/slurm.sh FOLDER COMMAND [ARGUMENT...]
#     tests/support/slurm.sh FOLDER              # says "ready" and stays until its stdin is closed
#
# Whoever is to meet it needs SLURM_CONF=FOLDER/slurm.conf. Needs root and Debian's packages
# slurm-wlm and munge. The daemons live in namespaces of their own: of processes, so that the kernel
# ends every one of them with this script, however it ends; of mounts, so that n1 and n2 are names of
# this host in their /etc/hosts and in nobody else's. Both nodes are the same cores.
set -euo pipefail

folder=$(realpath -m "$1")
shift

if [ -z "${MESHPLAN_SLURM_INSIDE:-}" ]; then
    export MESHPLAN_SLURM_INSIDE=1
    exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$folder" "$@"
fi
unset MESHPLAN_SLURM_INSIDE # PID 1 of the namespace from here on

mkdir -p "$folder"
chmod 755 "$folder"
cd "$folder"
{
    cat /etc/hosts
    echo "127.0.0.1 n1 n2"
} > hosts
mount --bind hosts /etc/hosts

free_ports() { # so many TCP ports that nobody listens on
    python3 -c "
import socket, sys
open_now = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in open_now: each.bind(('', 0))
print(*(each.getsockname()[1] for each in open_now))" "$1"
}
read -r controller first second < <(free_ports 3)
cat > slurm.conf << CONF
ClusterName=meshplan
SlurmctldHost=localhost
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=5
InactiveLimit=0
SchedulerParameters=sched_interval=1,batch_sched_delay=0
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/spool.%n
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdLogFile=$folder/slurmd.%n.log
NodeName=n1 NodeHostname=localhost Port=$first CPUs=$(nproc) State=UNKNOWN
NodeName=n2 NodeHostname=localhost Port=$second CPUs=$(nproc) State=UNKNOWN
PartitionName=tests Nodes=n1,n2 Default=YES MaxTime=10 State=UP
CONF
echo "CgroupPlugin=cgroup/v1" > cgroup.conf
rm -rf state spool.n1 spool.n2 ./*.log
mkdir state spool.n1 spool.n2
export SLURM_CONF=$folder/slurm.conf

head -c 128 /dev/urandom > munge.key
chmod 400 munge.key
munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF" -N n1 # jobs find the configuration by the path that is given here
slurmd -f "$SLURM_CONF" -N n2

for _ in $(seq 60); do
    idle=$(sinfo --noheader --Node --states=idle 2> sinfo.log | wc -l)
    [ "$idle" -ge 2 ] && break
    sleep 0.5
done
[ "$idle" -ge 2 ] || { head -n 50 ./*.log >&2; exit 1; }

if [ $# -gt 0 ]; then
    "$@"
else
    echo ready
    cat > /dev/null
fi
