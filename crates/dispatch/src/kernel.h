/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * The part of the kernel's sched_ext interface that the scheduler uses, under the kernel's names: types, constants,
 * functions. For BPF, types have only the fields that are used, and the loader relocates them to the running kernel (CO-RE).
 * Natively, the simulator implements the interface: native/kernel.h.
 */
#ifndef DISPATCH_KERNEL_H
#define DISPATCH_KERNEL_H

#ifdef __bpf__
#include "bpf/kernel.h"
#else
#include "native/kernel.h"
#endif

#endif
