# guest: debian bookworm trixie
# seconds: 1500
# budget: 700
# memory: 3072
# needs: commonhold.deb spin
# only: with --all
# The Debian package while its daemon runs, under either backend: an upgrade restarts a running daemon with the administrator's
# contract, removal ends it and undoes all changes, and a purge leaves nothing.

. /job/systemd.sh

# newer: a package of a later version, uncompressed, because compression is slow on an emulated machine.
newer() {
	[ -e newer.deb ] && return
	/usr/bin/dpkg-deb --raw-extract /job/commonhold.deb newer && sed -i 's/^\(Version: .*\)/\1+lab/' newer/DEBIAN/control &&
		/usr/bin/dpkg-deb -Znone --build newer newer.deb > /dev/null
}
version() {
	detail=$(dpkg-query --show --showformat '${db:Status-Abbrev}${Version}' commonhold 2> /dev/null)
}
is_upgraded() {
	version
	case $detail in "ii "*+lab) ;; *) return 1 ;; esac
}
other_pid() {
	detail=$(main_pid)
	[ "$detail" != "$1" ] && [ "$detail" != 0 ]
}
# no_process: neither a daemon nor a caretaker runs.
no_process() {
	detail=$(pgrep -f '^(/usr/bin/commonhold run|commonhold caretaker)' | head -n 3 | tr '\n' ' ')
	[ -z "$detail" ]
}
same_places() {
	places > places-now.txt
	same places.txt places-now.txt
}
not_there() {
	for path; do
		detail=$path
		[ ! -e "$path" ] || return 1
	done
	detail=
}
package() {
	ok "a newer package is made $how" newer || return
	ok "the package is installed $how" installs || return
	users_work
	ok "it starts nothing $how" no_process
	ok "the daemon starts $how" starts_service
	holds_service "it holds"
	service_pid=$(main_pid)

	ok "an upgrade while it runs $how" installs newer.deb
	ok "is there $how" is_upgraded
	ok "another daemon runs $how" soon 60 other_pid "$service_pid"
	holds_service "after the upgrade it holds"
	ok "with the administrator's contract $how" same $contract /etc/commonhold/contract.toml
	ok "processes are where they were $how" same_places
	ok "it runs the new program $how" test "$(readlink "/proc/$(main_pid)/exe")" = /usr/bin/commonhold

	ok "a removal while it runs $how" packages --remove commonhold
	ok "leaves no process $how" soon 60 no_process
	undone "after the removal"
	ok "the contract stays $how" same $contract /etc/commonhold/contract.toml
	ok "of /run nothing stays $how" not_there /run/commonhold

	ok "the package is installed once more $how" installs
	ok "the daemon starts again $how" starts_service
	holds_service "it holds again"
	ok "a purge while it runs $how" packages --purge commonhold
	ok "leaves no process $how" soon 60 no_process
	undone "after the purge"
	ok "no file stays $how" not_there /run/commonhold /var/lib/commonhold /etc/commonhold /usr/bin/commonhold \
		/usr/lib/systemd/system/commonhold.service /etc/systemd/system/multi-user.target.wants/commonhold.service
}

both_ways package
