/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/* The scheduler, compiled for the simulator. */
#include "../kernel.h"
#include "../intf.h"

/* Prototypes of the functions that the simulated kernel calls: simulated_kernel.rs. */
struct task_struct;
struct dispatch_world;
s32 dispatch_select_cpu(struct task_struct *p, s32 last, u64 wake_flags);
void dispatch_enqueue(struct task_struct *p, u64 enq_flags);
void dispatch_dispatch(s32 id, struct task_struct *prev);
void dispatch_running(struct task_struct *p);
void dispatch_stopping(struct task_struct *p, bool runnable);
void dispatch_tick(struct task_struct *p);
s32 dispatch_init_task(struct task_struct *p, struct scx_init_task_args *args);
int dispatch_own(struct dispatch_owned *owned);
int dispatch_set_unit(struct dispatch_setting *setting);
void dispatch_change_unit(struct task_struct *p, u32 unit);
bool dispatch_fits(const struct dispatch_task *task, u32 pool, u64 late);
void dispatch_turn(void);
void dispatch_enter(struct dispatch_world *machine);

#include "../dispatch.bpf.c"

/* Sets the machine that this thread simulates. */
void dispatch_enter(struct dispatch_world *machine)
{
	world = machine;
}

/* fits_pool(), for the simulated kernel's take_fitting(). */
bool dispatch_fits(const struct dispatch_task *task, u32 pool, u64 late)
{
	return fits_pool(task, pool, late);
}

/* Applies gates that were opened or shut. */
void dispatch_turn(void)
{
	turn_gates();
}

/* Moves a task to another unit. In the kernel, dispatch_cgroup_move() does so when a task changes its control group. */
void dispatch_change_unit(struct task_struct *p, u32 unit)
{
	change_unit(&p->own, unit);
}
