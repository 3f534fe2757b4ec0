// The blob; lib.rs tells how it works. System calls clobber RAX, RCX and R11 and nothing else.

    .section .rodata.insula_proxy, "a", @progbits
    .balign 16
    .globl insula_proxy_begin
    .hidden insula_proxy_begin
insula_proxy_begin:

// RDI: the desk's number.
.Lp_entry:
    lea r15, [rip + insula_proxy_begin + {BLOB_SIZE}]
    mov rbx, rdi
    call .Lp_own_stack              // pushes to the old stack, returns on the new one
    mov rbp, [r15 + {STEPS}]
    mov r14, [r15 + {STEPS_END}]
    call .Lp_steps
    jmp .Lp_look

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
    mov rsi, [rbp + {STEP_COMPLAINT}]
    mov rdx, [rbp + {STEP_COMPLAINT} + 8]
    test rdx, rdx
    jnz .Lp_fail
.Lp_next_step:
    add rbp, {STEP}
    jmp .Lp_steps
.Lp_steps_done:
    ret

// R12, R13 and RSP for desk RBX. Returns to the address on the old stack's top.
.Lp_own_stack:
    pop rcx
    lea rax, [rbx + 1]
    shl rax, {STACK_SHIFT}
    add rax, [r15 + {STACKS}]
    lea r13, [rax - 64]
    mov rsp, r13
    mov qword ptr [r13], 0
    imul r12, rbx, {DESK}
    add r12, [r15 + {DESKS}]
    jmp rcx

// A new thread, with its desk in RBP.
.Lp_thread:
    mov rbx, rbp
    call .Lp_own_stack
    mov esi, {SPACE_SIT}
    mov rdx, rbx
    call .Lp_space

// Wait for a turn: first look, then sleep.
.Lp_look:
    mov r8, [r15 + {POLLS}]
.Lp_poll:
    mov r14, [r12 + {TURN}]
    cmp r14, [r12 + {ANSWER_TURN}]
    jne .Lp_serve
    pause
    sub r8, 1
    jae .Lp_poll
    mov esi, {SPACE_WAIT}
    mov rdx, rbx
    call .Lp_space
    cmp eax, -32                    // EPIPE
    jne .Lp_look
.Lp_node_gone:
    mov rsi, [r15 + {NODE_GONE}]
    mov rdx, [r15 + {NODE_GONE} + 8]

// Write RDX bytes at RSI and end.
.Lp_fail:
    mov eax, 1                      // write
    mov edi, 2
    syscall
    mov edi, {FAILED}
.Lp_exit_group:
    mov eax, 231                    // exit_group
    syscall
    ud2

// ioctl RSI of the space with argument RDX.
.Lp_space:
    mov eax, 16                     // ioctl
    mov rdi, [r15 + {SPACE}]
    syscall
    ret

.Lp_serve:
    mov rax, [r12 + {NUMBER}]
    bt rax, {REQUEST_SHIFT}
    jc .Lp_request
.Lp_breakable:
    cmp [r13], r14
    je .Lp_broken_off
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
// RAX is the result, RDX the second one.
.Lp_answer_both:
    mov [r12 + {RESULT}], rax
    mov [r12 + {VALUE}], rdx
    mov qword ptr [r12 + {KIND}], {KIND_RESULT}
    mov r14, [r12 + {TURN}]         // a fault within the call was a turn as well
    mov [r12 + {ANSWER_TURN}], r14
    mfence
    cmp qword ptr [r12 + {LWK_ASLEEP}], 0
    je .Lp_look
    mov esi, {SPACE_RING}
    mov rdx, rbx
    call .Lp_space
    jmp .Lp_look

.Lp_broken_off:
    mov rax, -4                     // EINTR
    jmp .Lp_answer

.Lp_request:
    cmp eax, {REQUEST_RELEASE}
    je .Lp_release
    cmp eax, {REQUEST_THREAD}
    je .Lp_new_thread
    cmp eax, {REQUEST_THREAD_END}
    je .Lp_thread_end
    cmp eax, {REQUEST_FORK}
    je .Lp_fork
    cmp eax, {REQUEST_ARGUMENTS}
    je .Lp_give_arguments
    cmp eax, {REQUEST_EXIT}
    je .Lp_exit
    cmp eax, {REQUEST_RESOLVED}
    je .Lp_late
    mov rax, -38                    // ENOSYS
    jmp .Lp_answer

// The module has waited for this page long enough, and the call has ended without it: that is still
// the answer.
.Lp_late:
    mov rax, [r12 + {RESULT}]
    mov rdx, [r12 + {VALUE}]
    jmp .Lp_answer_both

// The request's arguments are the structure that the module takes.
.Lp_release:
    mov esi, {SPACE_RELEASE}
    lea rdx, [r12 + {ARGUMENTS}]
    call .Lp_space
    jmp .Lp_answer

.Lp_give_arguments:
    mov rdi, [r12 + {ARGUMENTS}]
    mov rcx, [r12 + {ARGUMENTS} + 8]
    mov rdx, [r15 + {PROGRAM} + 8]
    cmp rcx, rdx
    cmova rcx, rdx
    mov rax, rcx
    mov rsi, [r15 + {PROGRAM}]
    rep movsb
    jmp .Lp_answer

.Lp_new_thread:
    mov esi, {SPACE_DESK}
    xor edx, edx
    call .Lp_space
    test eax, eax
    js .Lp_no_desk
    mov ebp, eax
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
    jz .Lp_thread
    mov rdx, rbp
    jns .Lp_answer_both
    mov r14, rax
    mov esi, {SPACE_LEAVE}
    call .Lp_space
    mov rax, r14
    jmp .Lp_answer
.Lp_no_desk:
    cdqe
    jmp .Lp_answer

// A copy of this process for a copy of the program. Its space comes first, so that both are known
// to each other; RSP leads to what the module says of it. No signal comes before the copy has a
// desk of its own, nor is one lost.
.Lp_fork:
    call .Lp_block_signals
    sub rsp, {FORK}
    mov qword ptr [rsp + {FORK_PROCESS}], 0
    mov esi, {SPACE_FORK}
    mov rdx, rsp
    call .Lp_space
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
    jz .Lp_copy
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

// The copy: it has neither desks nor program yet, and its parent's space.
.Lp_copy:
    mov edi, ebp
    mov rsi, [r15 + {SPACE}]
    mov edx, 0x80000                // O_CLOEXEC
    mov eax, 292                    // dup3
    syscall
    mov edi, ebp
    mov eax, 3                      // close
    syscall
    mov rbx, [rsp + {FORK_DESK}]
    call .Lp_own_stack
    mov rbp, [r15 + {COPY_STEPS}]
    mov r14, [r15 + {COPY_STEPS_END}]
    call .Lp_steps
    call .Lp_unblock_signals
    jmp .Lp_look

// With its desk the stack may become another thread's: no signal may use it any more.
.Lp_thread_end:
    call .Lp_block_signals
    mov esi, {SPACE_LEAVE}
    mov rdx, rbx
    call .Lp_space
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

// As the program ended: by status or by signal.
.Lp_exit:
    mov rbp, [r12 + {ARGUMENTS}]
    mov edi, ebp
    shr edi, 8
    and edi, 0xff
    and ebp, 0x7f
    jz .Lp_exit_group
    mov edi, 4                      // RLIMIT_CORE
    lea rsi, [r15 + {NO_CORE}]
    mov eax, 160                    // setrlimit
    syscall
    mov edi, ebp
    lea rsi, [r15 + {DEFAULT_ACTION}]
    xor edx, edx
    mov r10d, 8
    mov eax, 13                     // rt_sigaction
    syscall
// To this thread: of a signal to the process another thread might be told, and this one go on and
// end the process by a status before that has heard of it.
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
    lea edi, [rbp + 128]            // of a signal that does not end anybody
    jmp .Lp_exit_group

// Handler of all signals: EDI is the signal, RSI its siginfo, RDX the context.
    .globl insula_proxy_handler
    .hidden insula_proxy_handler
insula_proxy_handler:
    lea r15, [rip + insula_proxy_begin + {BLOB_SIZE}]
    cmp edi, {INTERRUPT}
    je .Lp_interrupt
    cmp dword ptr [rsi + 8], 0      // si_code: positive if it is a fault's
    jle .Lp_pass_on
    cmp edi, 7                      // SIGBUS
    je .Lp_own_fault
    cmp edi, 11                     // SIGSEGV
    je .Lp_own_fault
    cmp edi, 4                      // SIGILL
    je .Lp_own_fault
.Lp_pass_on:
    mov rdx, rsi
    mov esi, {SPACE_SIGNAL}
    jmp .Lp_space

// At a desk: the node has ended. Elsewhere: let it happen again, with the default action.
.Lp_own_fault:
    mov rax, [rsi + 16]             // si_addr
    cmp rax, [r15 + {DESKS}]
    jb .Lp_give_up
    cmp rax, [r15 + {DESKS_END}]
    jb .Lp_node_gone
.Lp_give_up:
    lea rsi, [r15 + {DEFAULT_ACTION}]
    xor edx, edx
    mov r10d, 8
    mov eax, 13                     // rt_sigaction
    syscall
    ret

// Of the context: R12 at 72, R13 at 80, RIP at 168.
.Lp_interrupt:
    mov r8, [rdx + 72]
    mov r9, [r8 + {TURN}]
    cmp r9, [r8 + {ANSWER_TURN}]
    je .Lp_handled
    mov r10, [rdx + 80]
    mov [r10], r9
    mov rax, [rdx + 168]
    lea rcx, [rip + .Lp_breakable]
    cmp rax, rcx
    jb .Lp_handled
    lea rcx, [rip + .Lp_call]
    cmp rax, rcx
    ja .Lp_handled
    lea rcx, [rip + .Lp_broken_off]
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
