# budget: 10
# seconds: 120
# needs: cgroup_tree
# The cgroup backend's own tests, with the controllers that a development host may lack: the kernel enforces every order, and the
# undo restores everything.

echo "+cpu +cpuset +memory" > "$CGROUPS/cgroup.subtree_control"
cgroup_tree --test-threads 2 --nocapture > result 2>&1
ok "its tests pass" is "$?" 0
note "$(grep '^test result' result)"
while read -r test name dots verdict; do
	[ "$test" = test ] && [ "$name" != result: ] && [ "$verdict" != ok ] && note "$name $verdict"
done < result
skips=$(grep -c "skipped .*: " result)
ok "none of them lacks a controller" is "$skips" 0
