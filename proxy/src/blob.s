// The blob; lib.rs explains it. System calls clobber RAX, RCX and R11 and nothing else.

    .section .rodata.insula_proxy, "a", @progbits
    .balign 16
    .globl insula_proxy_begin
    .hidden insula_proxy_begin
insula_proxy_begin:

// RDI: number of the slot.
.Lp_entry:
    lea r15, [rip + insula_proxy_begin + {BLOB_SIZE}]
    mov rbx, rdi
    call .Lp_set_stack              // pushes to the old stack, returns on the new one
    mov rbp, [r15 + {STEPS}]
    mov r14, [r15 + {STEPS_END}]
    call .Lp_steps
    call .Lp_set_robust_list
    jmp .Lp_wait

// Make the system calls of the steps from RBP to below R14.
.Lp_steps:
    cmp rbp, r14
    jae .Lp_steps_done
    mov rax, [rbp + {STEP_NUMBER}]
    mov rdi, [rbp + {STEP_ARGUMENTS}]
    mov rsi, [rbp + {STEP_ARGUMENTS} + 8]
    mov rdx, [rbp + {STEP_ARGUMENTS} + 16]
    mov r10, [rbp + {STEP_ARGUMENTS} + 24]
    mov r8, [rbp + {STEP_ARGUMENTS} + 32]
    mov r9, [rbp + {STEP_ARGUMENTS} + 40]
    syscall
    cmp rax, -4095
    jb .Lp_next_step
.Lp_step_failed:
    mov rsi, [rbp + {STEP_ERROR_MESSAGE}]
    mov rdx, [rbp + {STEP_ERROR_MESSAGE} + 8]
    test rdx, rdx
    jnz .Lp_fail
.Lp_next_step:
    add rbp, {STEP}
    jmp .Lp_steps
.Lp_steps_done:
    ret

// Set R12, R13 and RSP for slot RBX. Returns to the address on top of the old stack.
.Lp_set_stack:
    pop rcx
    lea rax, [rbx + 1]
    shl rax, {STACK_SHIFT}
    add rax, [r15 + {STACKS}]
    lea r13, [rax - 64]
    mov rsp, r13
    mov qword ptr [r13], 0
    imul r12, rbx, {SLOT}
    add r12, [r15 + {SLOTS}]
    jmp rcx

// Name the head of this thread's list of robust futexes.
.Lp_set_robust_list:
    lea rdi, [r12 + {ROBUST_LIST}]
    mov esi, {ROBUST_LIST_SIZE}
    mov eax, 273                    // set_robust_list
    syscall
    ret

// Make the stack for slot RDI accessible. The others are not, so that they cost no memory even where
// the base accounts for all that is mapped, and no huge page covers them.
.Lp_map_stack:
    shl rdi, {STACK_SHIFT}
    add rdi, [r15 + {STACKS}]
    mov esi, {STACK_SIZE}
    mov edx, 3                      // PROT_READ, PROT_WRITE
    mov eax, 10                     // mprotect
    syscall
    ret

// Entry of a new thread, with its slot in RBP.
.Lp_thread_entry:
    mov rbx, rbp
    call .Lp_set_stack
    mov esi, {MIRROR_SLOT_ATTACH}
    mov rdx, rbx
    call .Lp_ioctl
    call .Lp_set_robust_list

// Wait for the next sequence number: first spin, then sleep.
.Lp_wait:
    mov r8, [r15 + {SPINS}]
.Lp_spin:
    mov r14, [r12 + {SEQUENCE}]
    cmp r14, [r12 + {ANSWER_SEQUENCE}]
    jne .Lp_serve
    pause
    sub r8, 1
    jae .Lp_spin
    mov esi, {MIRROR_SLOT_WAIT}
    mov rdx, rbx
    call .Lp_ioctl
    cmp eax, -32                    // EPIPE
    jne .Lp_wait
.Lp_node_gone:
    mov rsi, [r15 + {NODE_GONE}]
    mov rdx, [r15 + {NODE_GONE} + 8]

// Write RDX bytes at RSI to standard error and exit.
.Lp_fail:
    mov eax, 1                      // write
    mov edi, 2
    syscall
    mov edi, {EXIT_FAILED}
.Lp_exit_group:
    mov eax, 231                    // exit_group
    syscall
    ud2

// Make ioctl RSI of the mirror with argument RDX.
.Lp_ioctl:
    mov eax, 16                     // ioctl
    mov rdi, [r15 + {MIRROR}]
    syscall
    ret

.Lp_serve:
    mov rax, [r12 + {NUMBER}]
    bt rax, {REQUEST_SHIFT}
    jc .Lp_request
.Lp_cancellable:
    cmp [r13], r14
    je .Lp_cancelled
    mov rdi, [r12 + {ARGUMENTS}]
    mov rsi, [r12 + {ARGUMENTS} + 8]
    mov rdx, [r12 + {ARGUMENTS} + 16]
    mov r10, [r12 + {ARGUMENTS} + 24]
    mov r8, [r12 + {ARGUMENTS} + 32]
    mov r9, [r12 + {ARGUMENTS} + 40]
.Lp_call:
    syscall
.Lp_answer:
    xor edx, edx
// RAX is the result, RDX the second result.
.Lp_answer_both:
    mov [r12 + {RESULT}], rax
    mov [r12 + {VALUE}], rdx
    mov qword ptr [r12 + {KIND}], {KIND_RESULT}
    mov r14, [r12 + {SEQUENCE}]         // a remote fault within the call has advanced it
    mov [r12 + {ANSWER_SEQUENCE}], r14
    mfence
    cmp qword ptr [r12 + {LWK_ASLEEP}], 0
    je .Lp_wait
    mov esi, {MIRROR_SLOT_WAKE}
    mov rdx, rbx
    call .Lp_ioctl
    jmp .Lp_wait

.Lp_cancelled:
    mov rax, -4                     // EINTR
    mov edx, {NOT_BEGUN}
    jmp .Lp_answer_both

.Lp_request:
    cmp eax, {REQUEST_INVALIDATE}
    je .Lp_invalidate
    cmp eax, {REQUEST_FAULT_IN}
    je .Lp_fault_in
    cmp eax, {REQUEST_THREAD}
    je .Lp_new_thread
    cmp eax, {REQUEST_THREAD_END}
    je .Lp_thread_end
    cmp eax, {REQUEST_FORK}
    je .Lp_fork
    cmp eax, {REQUEST_ARGUMENTS}
    je .Lp_copy_arguments
    cmp eax, {REQUEST_EXIT}
    je .Lp_exit
    cmp eax, {REQUEST_RESOLVED}
    je .Lp_resolved_late
    mov rax, -38                    // ENOSYS
    jmp .Lp_answer

// The module timed out waiting for this page, and the call has ended without it: its result is
// still the answer.
.Lp_resolved_late:
    mov rax, [r12 + {RESULT}]
    mov rdx, [r12 + {VALUE}]
    jmp .Lp_answer_both

// The request's arguments are the structure that the ioctl takes.
.Lp_invalidate:
    mov esi, {MIRROR_INVALIDATE}
    lea rdx, [r12 + {ARGUMENTS}]
    call .Lp_ioctl
    jmp .Lp_answer

.Lp_fault_in:
    mov esi, {MIRROR_FAULT_IN}
    lea rdx, [r12 + {ARGUMENTS}]
    call .Lp_ioctl
    jmp .Lp_answer

.Lp_copy_arguments:
    mov rdi, [r12 + {ARGUMENTS}]
    mov rcx, [r12 + {ARGUMENTS} + 8]
    mov rdx, [r15 + {PROGRAM_ARGUMENTS} + 8]
    cmp rcx, rdx
    cmova rcx, rdx
    mov rax, rcx
    mov rsi, [r15 + {PROGRAM_ARGUMENTS}]
    rep movsb
    jmp .Lp_answer

.Lp_new_thread:
    mov esi, {MIRROR_SLOT_ALLOC}
    xor edx, edx
    call .Lp_ioctl
    test eax, eax
    js .Lp_no_slot
    mov ebp, eax
    mov rdi, rbp
    call .Lp_map_stack
    test rax, rax
    js .Lp_no_thread
    lea rsi, [rbp + 1]
    shl rsi, {STACK_SHIFT}
    add rsi, [r15 + {STACKS}]
    mov edi, 0x50f00                // CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM
    xor edx, edx
    xor r10d, r10d
    xor r8d, r8d
    mov eax, 56                     // clone
    syscall
    test rax, rax
    jz .Lp_thread_entry
    mov rdx, rbp
    jns .Lp_answer_both
.Lp_no_thread:
    mov r14, rax
    mov esi, {MIRROR_SLOT_FREE}
    mov rdx, rbp
    call .Lp_ioctl
    mov rax, r14
    jmp .Lp_answer
.Lp_no_slot:
    cdqe
    jmp .Lp_answer

// Fork this process for a child of the program. The child's mirror is made first, so that parent
// and child are linked; RSP points to the module's answer. Signals are blocked until the child has
// a slot of its own, so that none is lost.
.Lp_fork:
    call .Lp_block_signals
    sub rsp, {FORK}
    mov qword ptr [rsp + {FORK_PROCESS}], 0
    mov esi, {MIRROR_FORK}
    mov rdx, rsp
    call .Lp_ioctl
    movsxd rbp, eax
    test rbp, rbp
    js .Lp_no_fork
    mov rdi, [r12 + {ARGUMENTS}]
    xor esi, esi
    mov rdx, [r12 + {ARGUMENTS} + 8]
    xor r10d, r10d
    xor r8d, r8d
    mov eax, 56                     // clone
    syscall
    test rax, rax
    jz .Lp_child
    mov r14, rax
    mov edi, ebp
    mov eax, 3                      // close
    syscall
    mov rbp, r14
.Lp_no_fork:
    call .Lp_unblock_signals
    mov rax, rbp
    mov rdx, [rsp + {FORK_PROCESS}]
    add rsp, {FORK}
    jmp .Lp_answer_both

// The child: it has neither slots nor program mapped, and its parent's mirror descriptor.
.Lp_child:
    mov edi, ebp
    mov rsi, [r15 + {MIRROR}]
    mov edx, 0x80000                // O_CLOEXEC
    mov eax, 292                    // dup3
    syscall
    mov edi, ebp
    mov eax, 3                      // close
    syscall
    mov rbx, [rsp + {FORK_SLOT}]
    mov rbp, [r15 + {CHILD_STEPS}]
    mov rdi, rbx
    call .Lp_map_stack
    test rax, rax
    js .Lp_step_failed
    call .Lp_set_stack
    mov r14, [r15 + {CHILD_STEPS_END}]
    call .Lp_steps
    call .Lp_set_robust_list
    call .Lp_unblock_signals
    jmp .Lp_wait

// With the slot the stack may go to another thread: no signal may use it any more.
.Lp_thread_end:
    call .Lp_block_signals
    mov esi, {MIRROR_SLOT_FREE}
    mov rdx, rbx
    call .Lp_ioctl
    xor edi, edi
    mov eax, 60                     // exit
    syscall
    ud2

.Lp_block_signals:
    xor edi, edi                    // SIG_BLOCK
    jmp .Lp_sigprocmask
.Lp_unblock_signals:
    mov edi, 1                      // SIG_UNBLOCK
.Lp_sigprocmask:
    lea rsi, [r15 + {ALL_SIGNALS}]
    xor edx, edx
    mov r10d, 8
    mov eax, 14                     // rt_sigprocmask
    syscall
    ret

// Exit as the program did: by status or by signal.
.Lp_exit:
    mov rbp, [r12 + {ARGUMENTS}]
    mov edi, ebp
    shr edi, 8
    and edi, 0xff
    and ebp, 0x7f
    jz .Lp_exit_group
    mov edi, 4                      // RLIMIT_CORE
    lea rsi, [r15 + {NO_CORE_LIMIT}]
    mov eax, 160                    // setrlimit
    syscall
    mov edi, ebp
    lea rsi, [r15 + {DEFAULT_ACTION}]
    xor edx, edx
    mov r10d, 8
    mov eax, 13                     // rt_sigaction
    syscall
// Send it to this thread: a signal to the process might go to another thread, and this one would
// exit with a status before that one handles it.
    mov eax, 186                    // gettid
    syscall
    mov esi, eax
    mov eax, 39                     // getpid
    syscall
    mov edi, eax
    mov edx, ebp
    mov eax, 234                    // tgkill
    syscall
    call .Lp_unblock_signals
    lea edi, [rbp + 128]            // the signal does not terminate
    jmp .Lp_exit_group

// Handler of all signals: EDI is the signal, RSI its siginfo, RDX the ucontext.
    .globl insula_proxy_handler
    .hidden insula_proxy_handler
insula_proxy_handler:
    lea r15, [rip + insula_proxy_begin + {BLOB_SIZE}]
    cmp edi, {CANCEL_SIGNAL}
    je .Lp_cancel_signal
    cmp dword ptr [rsi + 8], 0      // si_code: positive for a fault
    jle .Lp_forward_signal
    cmp edi, 7                      // SIGBUS
    je .Lp_fault
    cmp edi, 11                     // SIGSEGV
    je .Lp_fault
    cmp edi, 4                      // SIGILL
    je .Lp_fault
.Lp_forward_signal:
    mov rdx, rsi
    mov esi, {MIRROR_SIGNAL}
    jmp .Lp_ioctl

// Fault on a slot: the node has ended. Elsewhere: repeat it with the default action.
.Lp_fault:
    mov rax, [rsi + 16]             // si_addr
    cmp rax, [r15 + {SLOTS}]
    jb .Lp_default_action
    cmp rax, [r15 + {SLOTS_END}]
    jb .Lp_node_gone
.Lp_default_action:
    lea rsi, [r15 + {DEFAULT_ACTION}]
    xor edx, edx
    mov r10d, 8
    mov eax, 13                     // rt_sigaction
    syscall
    ret

// ucontext: R12 at 72, R13 at 80, RIP at 168.
.Lp_cancel_signal:
    mov r8, [rdx + 72]
    mov r9, [r8 + {SEQUENCE}]
    cmp r9, [r8 + {ANSWER_SEQUENCE}]
    je .Lp_handled
    mov r10, [rdx + 80]
    mov [r10], r9
    mov rax, [rdx + 168]
    lea rcx, [rip + .Lp_cancellable]
    cmp rax, rcx
    jb .Lp_handled
    lea rcx, [rip + .Lp_call]
    cmp rax, rcx
    ja .Lp_handled
    lea rcx, [rip + .Lp_cancelled]
    mov [rdx + 168], rcx
.Lp_handled:
    ret

    .globl insula_proxy_restorer
    .hidden insula_proxy_restorer
insula_proxy_restorer:
    mov eax, 15                     // rt_sigreturn
    syscall
    ud2

    .globl insula_proxy_end
    .hidden insula_proxy_end
insula_proxy_end:

    .text
