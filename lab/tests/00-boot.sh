# budget: 5
# The guest has the CPUs, nodes, memory and kernel features that the other tests rely on.

cpus_of_node() {
	cat "/sys/devices/system/node/node$1/cpulist"
}
has_controller() {
	detail=$(cat $CGROUPS/cgroup.controllers)
	case " $detail " in *" $1 "*) ;; *) return 1 ;; esac
}

ok "8 CPUs are online" is "$(cat /sys/devices/system/cpu/online)" 0-7
ok "4 nodes are online" is "$(cat /sys/devices/system/node/online)" 0-3
for node in 0 1 2 3; do
	ok "node $node has two CPUs" is "$(cpus_of_node $node)" "$((2 * node))-$((2 * node + 1))"
done
ok "CPUs 0 and 1 share their last-level cache" is "$(cat /sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list)" 0-1
ok "cgroup v2 has the cpu controller" has_controller cpu
ok "cgroup v2 has the cpuset controller" has_controller cpuset
ok "the kernel has sched_ext" is "$(cat /sys/kernel/sched_ext/state)" disabled
ok "the kernel shows its type information" [ -s /sys/kernel/btf/vmlinux ]
ok "the kernel shows pressure" [ -r /proc/pressure/cpu ]
