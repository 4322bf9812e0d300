; ModuleID = 'forward'
source_filename = "forward"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

@flp_shared = external addrspace(3) global [0 x i8], align 128

; Function Attrs: nounwind
define void @flp_forward(ptr addrspace(1) %hidden, i64 %hidden_stride, ptr addrspace(1) %weight, i64 %weight_stride, ptr addrspace(1) %bias, ptr addrspace(1) %index, ptr addrspace(1) %local_target, ptr addrspace(1) %scale, ptr addrspace(1) %count, float %cap_in, i32 %depth, i32 %vocab_valid, i32 %row_begin, i32 %row_end, i32 %bands, i32 %groups, ptr addrspace(1) %part, i64 %capacity, ptr addrspace(1) %zy) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !2
  %1 = sext i32 %0 to i64
  %2 = getelementptr [8 x i8], ptr addrspace(1) %hidden, i64 %1
  %3 = load <2 x i32>, ptr addrspace(1) %2, align 8
  %4 = extractelement <2 x i32> %3, i32 0
  %5 = trunc i32 %4 to i16
  %6 = bitcast i16 %5 to bfloat
  %7 = extractelement <2 x i32> %3, i32 0
  %8 = lshr i32 %7, 16
  %9 = trunc i32 %8 to i16
  %10 = bitcast i16 %9 to bfloat
  %11 = extractelement <2 x i32> %3, i32 1
  %12 = trunc i32 %11 to i16
  %13 = bitcast i16 %12 to bfloat
  %14 = extractelement <2 x i32> %3, i32 1
  %15 = lshr i32 %14, 16
  %16 = trunc i32 %15 to i16
  %17 = bitcast i16 %16 to bfloat
  %18 = bitcast bfloat %6 to i16
  %19 = zext i16 %18 to i32
  %20 = shl i32 %19, 16
  %21 = bitcast i32 %20 to float
  %22 = bitcast bfloat %17 to i16
  %23 = zext i16 %22 to i32
  %24 = shl i32 %23, 16
  %25 = bitcast i32 %24 to float
  %26 = fadd float %21, %25
  %27 = mul i32 %0, 4
  %28 = add i32 ptrtoint (ptr addrspace(3) @flp_shared to i32), %27
  call void asm sideeffect "st.shared.f32 [$0], $1;", "r,f,~{memory}"(i32 %28, float %26) #3
  call void @llvm.nvvm.barrier0()
  %29 = sub i32 31, %0
  %30 = mul i32 %29, 4
  %31 = add i32 ptrtoint (ptr addrspace(3) @flp_shared to i32), %30
  %32 = call float asm sideeffect "ld.shared.f32 $0, [$1];", "=f,r,~{memory}"(i32 %31) #3
  %33 = getelementptr i8, ptr addrspace(1) %part, i64 %capacity
  %34 = fptrunc float %32 to bfloat
  %35 = sext i32 %0 to i64
  %36 = getelementptr bfloat, ptr addrspace(1) %33, i64 %35
  store bfloat %34, ptr addrspace(1) %36, align 2
  %37 = sext i32 %0 to i64
  %38 = insertelement <2 x float> poison, float %26, i32 0
  %39 = insertelement <2 x float> %38, float %32, i32 1
  %40 = getelementptr [8 x i8], ptr addrspace(1) %zy, i64 %37
  store <2 x float> %39, ptr addrspace(1) %40, align 8
  %41 = sext i32 %0 to i64
  %42 = getelementptr i32, ptr addrspace(1) %index, i64 %41
  %43 = load i32, ptr addrspace(1) %42, align 4
  %44 = getelementptr i32, ptr addrspace(1) %count, i64 0
  %45 = atomicrmw add ptr addrspace(1) %44, i32 %43 monotonic, align 4
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.tid.x() #1

; Function Attrs: convergent nocallback nounwind
declare void @llvm.nvvm.barrier0() #2

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #2 = { convergent nocallback nounwind }
attributes #3 = { nounwind }

!nvvm.annotations = !{!0, !1}

!0 = !{ptr @flp_forward, !"kernel", i32 1}
!1 = !{ptr @flp_forward, !"maxntidx", i32 32}
!2 = !{i32 0, i32 32}
