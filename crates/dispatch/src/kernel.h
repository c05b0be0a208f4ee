/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0 */
/*
 * What the scheduler uses of the kernel's sched_ext interface, in the kernel's own names: types, constants, functions.
 * For BPF, the types carry only the fields that are used, and the loader finds where they are in the running kernel
 * (CO-RE). Natively, the simulator plays the kernel: native/kernel.h.
 */
#ifndef DISPATCH_KERNEL_H
#define DISPATCH_KERNEL_H

#ifdef __bpf__
#include "bpf/kernel.h"
#else
#include "native/kernel.h"
#endif

#endif
