// The vDSO that programs find by AT_SYSINFO_EHDR: an ELF file of one page, which follows the page
// with the clocks; vdso.rs explains it. Offsets are from its first byte, which is address 0.

    .section .rodata.insula_vdso, "a", @progbits
    .balign 4096
    .globl insula_vdso_begin
    .hidden insula_vdso_begin
insula_vdso_begin:
    .byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0        // 64-bit, little endian, version 1
    .quad 0
    .short 3, 62                                    // a shared object, x86-64
    .long 1
    .quad 0                                         // no entry
    .quad .Lv_segments - insula_vdso_begin
    .quad 0                                         // no sections
    .long 0
    .short 64, 56, 2, 64, 0, 0
.Lv_segments:
    .long 1, 5                                      // PT_LOAD, read and executed
    .quad 0, 0, 0
    .quad .Lv_end - insula_vdso_begin, .Lv_end - insula_vdso_begin, 4096
    .long 2, 4                                      // PT_DYNAMIC
    .quad .Lv_dynamic - insula_vdso_begin
    .quad .Lv_dynamic - insula_vdso_begin
    .quad .Lv_dynamic - insula_vdso_begin
    .quad .Lv_dynamic_end - .Lv_dynamic, .Lv_dynamic_end - .Lv_dynamic, 8
.Lv_dynamic:
    .quad 14, .Lv_name - .Lv_strings                // DT_SONAME
    .quad 4, .Lv_hash - insula_vdso_begin           // DT_HASH
    .quad 5, .Lv_strings - insula_vdso_begin        // DT_STRTAB
    .quad 6, .Lv_symbols - insula_vdso_begin        // DT_SYMTAB
    .quad 10, .Lv_strings_end - .Lv_strings         // DT_STRSZ
    .quad 11, 24                                    // DT_SYMENT
    .quad 0x6ffffff0, .Lv_versions - insula_vdso_begin      // DT_VERSYM
    .quad 0x6ffffffc, .Lv_definitions - insula_vdso_begin   // DT_VERDEF
    .quad 0x6ffffffd, 2                             // DT_VERDEFNUM
    .quad 0, 0
.Lv_dynamic_end:

// One hash chain with all symbols.
.Lv_hash:
    .long 1, 5, 1, 0, 2, 3, 4, 0

// All symbols have the second version; each version has the hash of its name. Go requires them.
.Lv_versions:
    .short 0, 2, 2, 2, 2
    .balign 4
.Lv_definitions:
    .short 1, 1, 1, 1
    .long 0xdeebfa1, 20, 28
    .long .Lv_name - .Lv_strings, 0
    .short 1, 0, 2, 1
    .long 0x3ae75f6, 20, 0
    .long .Lv_version - .Lv_strings, 0

// Global functions; their section index is arbitrary.
    .balign 8
.Lv_symbols:
    .quad 0, 0, 0
    .macro vdso_symbol name, code, end
    .long \name - .Lv_strings
    .byte 0x12, 0
    .short 1
    .quad \code - insula_vdso_begin
    .quad \end - \code
    .endm
    vdso_symbol .Lv_name_1, .Lv_clock_gettime, .Lv_clock_gettime_end
    vdso_symbol .Lv_name_2, .Lv_gettimeofday, .Lv_gettimeofday_end
    vdso_symbol .Lv_name_3, .Lv_time, .Lv_time_end
    vdso_symbol .Lv_name_4, .Lv_getcpu, .Lv_getcpu_end
.Lv_strings:
    .byte 0
.Lv_name:   .asciz "linux-vdso.so.1"
.Lv_version: .asciz "LINUX_2.6"
.Lv_name_1: .asciz "__vdso_clock_gettime"
.Lv_name_2: .asciz "__vdso_gettimeofday"
.Lv_name_3: .asciz "__vdso_time"
.Lv_name_4: .asciz "__vdso_getcpu"
.Lv_strings_end:

// Whether RDTSCP returns the core number. Written before it is mapped to any program.
    .balign 8
    .globl insula_vdso_has_rdtscp
    .hidden insula_vdso_has_rdtscp
insula_vdso_has_rdtscp:
    .quad 0

    .balign 16
// Return in RAX the clock at R8, in ns. R9: address of the clocks. Clobbers RCX, RDX, R10.
.Lv_now:
    mov r10, [r9 + {SEQUENCE}]
    test r10b, 1
    jnz .Lv_retry
    lfence
    rdtsc
    shl rdx, 32
    or rax, rdx
    xor ecx, ecx
    sub rax, [r9 + {TSC}]
    cmovb rax, rcx
    mul qword ptr [r9 + {MULT}]
    add rax, [r9 + {FRACTION}]
    adc rdx, 0
    shrd rax, rdx, 32
    add rax, [r8]
    cmp r10, [r9 + {SEQUENCE}]
    jne .Lv_now
    ret
.Lv_retry:
    pause
    jmp .Lv_now

.Lv_realtime:
    lea r9, [rip + insula_vdso_begin - 4096 + {CLOCK}]
    lea r8, [r9 + {REALTIME}]
    jmp .Lv_now

// EDI: clock id, RSI: address of the result.
.Lv_clock_gettime:
    cmp edi, 6
    ja .Lv_clock_of_base
    mov eax, 1
    mov ecx, edi
    shl eax, cl
    lea r9, [rip + insula_vdso_begin - 4096 + {CLOCK}]
    lea r8, [r9 + {REALTIME}]
    test eax, 0x21                  // CLOCK_REALTIME, CLOCK_REALTIME_COARSE
    jnz .Lv_clock_local
    lea r8, [r9 + {MONOTONIC}]
    test eax, 0x42                  // CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE
    jz .Lv_clock_of_base
.Lv_clock_local:
    call .Lv_now
    xor edx, edx
    mov ecx, 1000000000
    div rcx
    mov [rsi], rax
    mov [rsi + 8], rdx
    xor eax, eax
    ret
.Lv_clock_of_base:
    mov eax, 228
    syscall
    ret
.Lv_clock_gettime_end:

// RDI: address of the result or 0, RSI: address of a time zone or 0.
.Lv_gettimeofday:
    test rsi, rsi
    jnz .Lv_with_zone
    test rdi, rdi
    jz .Lv_no_result
    call .Lv_realtime
    xor edx, edx
    mov ecx, 1000000000
    div rcx
    mov [rdi], rax
    mov eax, edx
    xor edx, edx
    mov ecx, 1000
    div ecx
    mov [rdi + 8], rax
.Lv_no_result:
    xor eax, eax
    ret
.Lv_with_zone:
    mov eax, 96
    syscall
    ret
.Lv_gettimeofday_end:

// RDI: address of the result or 0; it is also returned.
.Lv_time:
    call .Lv_realtime
    xor edx, edx
    mov ecx, 1000000000
    div rcx
    test rdi, rdi
    jz .Lv_time_done
    mov [rdi], rax
.Lv_time_done:
    ret
.Lv_time_end:

// RDI: address for the core number, RSI: address for the NUMA node, which is 0; each may be 0.
.Lv_getcpu:
    cmp qword ptr [rip + insula_vdso_has_rdtscp], 0
    je .Lv_core_of_kernel
    rdtscp
    test rdi, rdi
    jz .Lv_core_stored
    mov [rdi], ecx
.Lv_core_stored:
    test rsi, rsi
    jz .Lv_node_stored
    mov dword ptr [rsi], 0
.Lv_node_stored:
    xor eax, eax
    ret
.Lv_core_of_kernel:
    mov eax, 309
    syscall
    ret
.Lv_getcpu_end:
.Lv_end:
    .globl insula_vdso_end
    .hidden insula_vdso_end
insula_vdso_end:

    .text
