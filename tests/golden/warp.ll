; ModuleID = 'forward'
source_filename = "forward"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

@flp_shared = external addrspace(3) global [0 x i8], align 128

; Function Attrs: nounwind
define void @flp_forward(ptr addrspace(1) %hidden, i64 %hidden_stride, ptr addrspace(1) %weight, i64 %weight_stride, ptr addrspace(1) %bias, ptr addrspace(1) %index, ptr addrspace(1) %local_target, ptr addrspace(1) %scale, ptr addrspace(1) %count, float %cap_in, i32 %depth, i32 %vocab_valid, i32 %row_begin, i32 %row_end, i32 %bands, i32 %groups, ptr addrspace(1) %part, i64 %capacity, ptr addrspace(1) %zy) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.laneid(), !range !2
  %1 = mul i32 %0, 16
  %2 = add i32 ptrtoint (ptr addrspace(3) @flp_shared to i32), %1
  call void asm sideeffect "cp.async.cg.shared.global [$0], [$1], 16;", "r,l,~{memory}"(i32 %2, ptr addrspace(1) %hidden) #5
  %3 = call i32 @llvm.nvvm.read.ptx.sreg.laneid(), !range !2
  %4 = mul i32 %3, 16
  %5 = add i32 ptrtoint (ptr addrspace(3) @flp_shared to i32), %4
  %6 = add i32 %5, 512
  call void asm sideeffect "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r,~{memory}"(i32 %6, ptr addrspace(1) %weight, i32 %depth) #5
  call void asm sideeffect "cp.async.commit_group;", "~{memory}"() #5
  call void asm sideeffect "cp.async.wait_group 0;", "~{memory}"() #5
  call void @llvm.nvvm.barrier0()
  %7 = call { i32, i32, i32, i32 } asm sideeffect "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,r,~{memory}"(i32 ptrtoint (ptr addrspace(3) @flp_shared to i32)) #5
  %8 = extractvalue { i32, i32, i32, i32 } %7, 0
  %9 = extractvalue { i32, i32, i32, i32 } %7, 1
  %10 = extractvalue { i32, i32, i32, i32 } %7, 2
  %11 = extractvalue { i32, i32, i32, i32 } %7, 3
  %12 = call { i32, i32, i32, i32 } asm sideeffect "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,r,~{memory}"(i32 add (i32 ptrtoint (ptr addrspace(3) @flp_shared to i32), i32 512)) #5
  %13 = extractvalue { i32, i32, i32, i32 } %12, 0
  %14 = extractvalue { i32, i32, i32, i32 } %12, 1
  %15 = extractvalue { i32, i32, i32, i32 } %12, 2
  %16 = extractvalue { i32, i32, i32, i32 } %12, 3
  %17 = call { float, float, float, float } asm "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};", "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"(i32 %8, i32 %9, i32 %10, i32 %11, i32 %13, i32 %14, float 0.000000e+00, float 0.000000e+00, float %cap_in, float 1.000000e+00) #6
  %18 = extractvalue { float, float, float, float } %17, 0
  %19 = extractvalue { float, float, float, float } %17, 1
  %20 = extractvalue { float, float, float, float } %17, 2
  %21 = extractvalue { float, float, float, float } %17, 3
  %22 = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %18, i32 1, i32 31)
  %23 = call float @llvm.maxnum.f32(float %18, float %22)
  %24 = call float @llvm.nvvm.shfl.sync.up.f32(i32 -1, float %19, i32 1, i32 0)
  %25 = call float @llvm.nvvm.shfl.sync.idx.f32(i32 -1, float %20, i32 0, i32 31)
  %26 = fmul float %24, %25
  %27 = fadd float %23, %26
  %28 = fcmp olt float %27, 0.000000e+00
  %29 = call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 %28)
  %30 = call i32 @llvm.ctpop.i32(i32 %29)
  %31 = fcmp uno float %27, %27
  %32 = call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 %31)
  br i1 %32, label %when, label %join

when:                                             ; preds = %entry
  %33 = getelementptr i32, ptr addrspace(1) %count, i64 0
  store i32 %30, ptr addrspace(1) %33, align 4
  br label %join

join:                                             ; preds = %when, %entry
  %34 = call i32 @llvm.nvvm.read.ptx.sreg.laneid(), !range !2
  %35 = call float @llvm.nvvm.ex2.approx.ftz.f(float %21)
  %36 = call i32 asm "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f"(float %35, float %27) #7
  %37 = sext i32 %34 to i64
  %38 = getelementptr i32, ptr addrspace(1) %part, i64 %37
  store i32 %36, ptr addrspace(1) %38, align 4
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.laneid() #1

; Function Attrs: convergent nocallback nounwind
declare void @llvm.nvvm.barrier0() #2

; Function Attrs: convergent nocallback nounwind memory(inaccessiblemem: readwrite)
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32) #3

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare float @llvm.maxnum.f32(float, float) #1

; Function Attrs: convergent nocallback nounwind memory(inaccessiblemem: readwrite)
declare float @llvm.nvvm.shfl.sync.up.f32(i32, float, i32, i32) #3

; Function Attrs: convergent nocallback nounwind memory(inaccessiblemem: readwrite)
declare float @llvm.nvvm.shfl.sync.idx.f32(i32, float, i32, i32) #3

; Function Attrs: convergent nocallback nounwind memory(inaccessiblemem: readwrite)
declare i32 @llvm.nvvm.vote.ballot.sync(i32, i1) #3

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.ctpop.i32(i32) #1

; Function Attrs: convergent nocallback nounwind memory(inaccessiblemem: readwrite)
declare i1 @llvm.nvvm.vote.any.sync(i32, i1) #3

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(none)
declare float @llvm.nvvm.ex2.approx.ftz.f(float) #4

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #2 = { convergent nocallback nounwind }
attributes #3 = { convergent nocallback nounwind memory(inaccessiblemem: readwrite) }
attributes #4 = { nocallback nofree nosync nounwind willreturn memory(none) }
attributes #5 = { convergent nounwind }
attributes #6 = { convergent nounwind willreturn memory(none) }
attributes #7 = { nounwind willreturn memory(none) }

!nvvm.annotations = !{!0, !1}

!0 = !{ptr @flp_forward, !"kernel", i32 1}
!1 = !{ptr @flp_forward, !"maxntidx", i32 32}
!2 = !{i32 0, i32 32}
