# guest: debian bookworm trixie
# seconds: 900
# budget: 300
# memory: 3072
# needs: commonhold.deb
# only: with --all
# The machine reboots while the packaged daemon holds the contract. The daemon starts by itself and holds it with the contract's
# own tickets, because changed tickets are kept in /run, which is then empty. An administrator's limits persist; after the daemon
# has ended, no other properties are set.

. /job/systemd.sh

unit_folder=/etc/systemd/system/commonhold.service.d
way=cgroup how="(cgroup)"
kept="AllowedCPUs=0-3 CPUWeight=50"
are_set() {
	detail=$(systemctl show user-1001.slice -p AllowedCPUs -p CPUWeight | sort | tr '\n' ' ')
	[ "$detail" = "$kept " ]
}
tickets_of() {
	detail=$(commonhold tickets "$1" 2>&1 | tr '\n' ' ')
}
has_tickets() {
	commonhold tickets > tickets.txt 2>&1
	detail=$(grep -w physics tickets.txt | head -n 1)
	case $detail in *" 700"*) ;; *) return 1 ;; esac
}
has_contracts_tickets() {
	! has_tickets && case $detail in physics*) ;; *) return 1 ;; esac
}
# only_administrators: of all properties set for slices, only the administrator's are left.
only_administrators() {
	detail=$(find /run/systemd/system.control /etc/systemd/system.control -type f 2> /dev/null | sort | tr '\n' ' ')
	[ "$detail" = "/etc/systemd/system.control/user-1001.slice.d/50-AllowedCPUs.conf /etc/systemd/system.control/user-1001.slice.d/50-CPUWeight.conf " ]
}
if [ -z "$rebooted" ]; then
	ok "the package is installed" installs
	on ana "setsid sleep 941 < /dev/null > /dev/null 2>&1 &"
	systemctl set-property user-1001.slice AllowedCPUs=0-3 CPUWeight=50
	ok "the service is enabled, and starts" systemctl enable --now commonhold
	holds_service "it holds"
	ok "tickets are set" commonhold tickets set physics cpu 700
	ok "and are in force" wait_for 20 has_tickets
	mkdir -p /var/lib/lab
	cat /proc/sys/kernel/random/boot_id > /var/lib/lab/boot
	reboot_machine
fi
ok "the machine has rebooted" test "$(cat /proc/sys/kernel/random/boot_id)" != "$(cat /var/lib/lab/boot)"
ok "the daemon runs" wait_for 150 is_active commonhold
on ana "setsid sleep 941 < /dev/null > /dev/null 2>&1 &"
holds_service "it holds"
ok "with the contract's tickets" wait_for 20 has_contracts_tickets
ok "an administrator's properties are there" soon 20 are_set
ok "and in force" is "$(cat "$slice/cpuset.cpus") $(cat "$slice/cpu.weight")" "0-3 50"
ok "it ends" systemctl disable --now commonhold
ok "no process is stopped" nobody_stopped
ok "no other property is left" only_administrators
ok "an administrator's properties stay" are_set
packages --purge commonhold
rm -rf $unit_folder
