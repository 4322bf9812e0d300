; ModuleID = 'rows'
source_filename = "rows"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_loss_rows(ptr addrspace(1) %logprob, ptr addrspace(1) %entropy, ptr addrspace(1) %old_logprob, ptr addrspace(1) %ref_logprob, ptr addrspace(1) %advantage, ptr addrspace(1) %weight, ptr addrspace(1) %vector0, ptr addrspace(1) %vector1, ptr addrspace(1) %vector2, ptr addrspace(1) %vector3, ptr addrspace(1) %vector4, ptr addrspace(1) %vector5, ptr addrspace(1) %vector6, ptr addrspace(1) %vector7, i64 %parameter0, i64 %parameter1, i64 %parameter2, i64 %parameter3, i64 %parameter4, i64 %parameter5, i64 %parameter6, i64 %parameter7, i64 %n, ptr addrspace(1) %loss, ptr addrspace(1) %grad_logprob, ptr addrspace(1) %grad_entropy, ptr addrspace(1) %metrics) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !range !2
  %1 = sext i32 %0 to i64
  %2 = mul i64 %1, 256
  %3 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !3
  %4 = sext i32 %3 to i64
  %5 = add i64 %2, %4
  %6 = icmp sge i64 %5, %n
  br i1 %6, label %leave, label %stay

leave:                                            ; preds = %entry
  ret void

stay:                                             ; preds = %entry
  %7 = getelementptr float, ptr addrspace(1) %logprob, i64 %5
  %8 = load float, ptr addrspace(1) %7, align 4, !invariant.load !4
  %9 = fpext float %8 to double
  %10 = getelementptr float, ptr addrspace(1) %entropy, i64 %5
  %11 = load float, ptr addrspace(1) %10, align 4, !invariant.load !4
  %12 = fpext float %11 to double
  %13 = icmp eq ptr addrspace(1) %old_logprob, null
  br i1 %13, label %then, label %else

then:                                             ; preds = %stay
  %14 = getelementptr float, ptr addrspace(1) %logprob, i64 %5
  %15 = load float, ptr addrspace(1) %14, align 4, !invariant.load !4
  %16 = fpext float %15 to double
  br label %join

else:                                             ; preds = %stay
  %17 = getelementptr float, ptr addrspace(1) %old_logprob, i64 %5
  %18 = load float, ptr addrspace(1) %17, align 4, !invariant.load !4
  %19 = fpext float %18 to double
  br label %join

join:                                             ; preds = %else, %then
  %20 = phi double [ %16, %then ], [ %19, %else ]
  %21 = getelementptr float, ptr addrspace(1) %ref_logprob, i64 %5
  %22 = load float, ptr addrspace(1) %21, align 4, !invariant.load !4
  %23 = fpext float %22 to double
  %24 = getelementptr float, ptr addrspace(1) %advantage, i64 %5
  %25 = load float, ptr addrspace(1) %24, align 4, !invariant.load !4
  %26 = fpext float %25 to double
  %27 = icmp eq ptr addrspace(1) %weight, null
  br i1 %27, label %then1, label %else2

then1:                                            ; preds = %join
  br label %join3

else2:                                            ; preds = %join
  %28 = getelementptr float, ptr addrspace(1) %weight, i64 %5
  %29 = load float, ptr addrspace(1) %28, align 4, !invariant.load !4
  %30 = fpext float %29 to double
  br label %join3

join3:                                            ; preds = %else2, %then1
  %31 = phi double [ 1.000000e+00, %then1 ], [ %30, %else2 ]
  %32 = getelementptr float, ptr addrspace(1) %vector0, i64 %5
  %33 = load float, ptr addrspace(1) %32, align 4, !invariant.load !4
  %34 = fpext float %33 to double
  %35 = getelementptr float, ptr addrspace(1) %vector1, i64 %5
  %36 = load float, ptr addrspace(1) %35, align 4, !invariant.load !4
  %37 = fpext float %36 to double
  %38 = bitcast i64 %parameter0 to double
  %39 = bitcast i64 %parameter1 to double
  %40 = fsub double %9, %20
  %41 = fcmp olt double %40, %34
  %42 = fcmp uno double %40, %40
  %43 = or i1 %41, %42
  %44 = select i1 %43, double %40, double %34
  %45 = fcmp ogt double %40, %34
  %46 = fcmp oeq double %40, %34
  %47 = select i1 %46, double 5.000000e-01, double 1.000000e+00
  %48 = select i1 %45, double 0.000000e+00, double %47
  %49 = fmul double %48, 1.000000e+00
  %50 = fcmp oeq double %48, 0.000000e+00
  %51 = select i1 %50, double 0.000000e+00, double %49
  %52 = fcmp ogt double %40, %37
  %53 = fcmp uno double %40, %40
  %54 = or i1 %52, %53
  %55 = select i1 %54, double %40, double %37
  %56 = fcmp olt double %40, %37
  %57 = fcmp oeq double %40, %37
  %58 = select i1 %57, double 5.000000e-01, double 1.000000e+00
  %59 = select i1 %56, double 0.000000e+00, double %58
  %60 = fmul double %59, 1.000000e+00
  %61 = fcmp oeq double %59, 0.000000e+00
  %62 = select i1 %61, double 0.000000e+00, double %60
  %63 = fadd double %44, %55
  %64 = fmul double 1.000000e+00, %51
  %65 = fmul double 1.000000e+00, %62
  %66 = fadd double %64, %65
  %67 = fmul double %38, %31
  %68 = fcmp ogt double %40, %39
  %69 = fcmp uno double %40, %40
  %70 = or i1 %68, %69
  %71 = select i1 %70, double %40, double %39
  %72 = fcmp olt double %71, %67
  %73 = fcmp uno double %71, %71
  %74 = or i1 %72, %73
  %75 = select i1 %74, double %71, double %67
  %76 = fcmp oge double %40, %39
  %77 = fcmp ole double %40, %67
  %78 = and i1 %76, %77
  %79 = select i1 %78, double 1.000000e+00, double 0.000000e+00
  %80 = fmul double %79, 1.000000e+00
  %81 = fcmp oeq double %79, 0.000000e+00
  %82 = select i1 %81, double 0.000000e+00, double %80
  %83 = fadd double %63, %75
  %84 = fmul double 1.000000e+00, %66
  %85 = fmul double 1.000000e+00, %82
  %86 = fadd double %84, %85
  %87 = fdiv double %83, 8.000000e+00
  %88 = fmul double 1.250000e-01, %86
  %89 = fcmp ogt double %87, 7.080000e+02
  %90 = fcmp olt double %87, -7.080000e+02
  %91 = fcmp ogt double %87, 7.080000e+02
  %92 = select i1 %91, double 7.080000e+02, double %87
  %93 = select i1 %90, double -7.080000e+02, double %92
  %94 = call double @llvm.fma.f64(double %93, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %95 = fsub double %94, 0x4338000000000000
  %96 = call double @llvm.fma.f64(double %95, double 0xBFE62E42FEE00000, double %93)
  %97 = call double @llvm.fma.f64(double %95, double 0xBDEA39EF35793C76, double %96)
  %98 = bitcast double %94 to i64
  %99 = add i64 %98, 1023
  %100 = shl i64 %99, 52
  %101 = bitcast i64 %100 to double
  %102 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %97, double 0x3DE6124613A86D09)
  %103 = call double @llvm.fma.f64(double %102, double %97, double 0x3E21EED8EFF8D898)
  %104 = call double @llvm.fma.f64(double %103, double %97, double 0x3E5AE64567F544E4)
  %105 = call double @llvm.fma.f64(double %104, double %97, double 0x3E927E4FB7789F5C)
  %106 = call double @llvm.fma.f64(double %105, double %97, double 0x3EC71DE3A556C734)
  %107 = call double @llvm.fma.f64(double %106, double %97, double 0x3EFA01A01A01A01A)
  %108 = call double @llvm.fma.f64(double %107, double %97, double 0x3F2A01A01A01A01A)
  %109 = call double @llvm.fma.f64(double %108, double %97, double 0x3F56C16C16C16C17)
  %110 = call double @llvm.fma.f64(double %109, double %97, double 0x3F81111111111111)
  %111 = call double @llvm.fma.f64(double %110, double %97, double 0x3FA5555555555555)
  %112 = call double @llvm.fma.f64(double %111, double %97, double 0x3FC5555555555555)
  %113 = call double @llvm.fma.f64(double %112, double %97, double 5.000000e-01)
  %114 = call double @llvm.fma.f64(double %113, double %97, double 1.000000e+00)
  %115 = fmul double %97, %114
  %116 = call double @llvm.fma.f64(double %101, double %115, double %101)
  %117 = fcmp olt double %87, -7.080000e+02
  %118 = select i1 %117, double 0.000000e+00, double %116
  %119 = select i1 %89, double 0x7FF0000000000000, double %118
  %120 = fmul double %119, %88
  %121 = fneg double %40
  %122 = fcmp ogt double %121, 7.080000e+02
  %123 = fcmp olt double %121, -7.080000e+02
  %124 = fcmp ogt double %121, 7.080000e+02
  %125 = select i1 %124, double 7.080000e+02, double %121
  %126 = select i1 %123, double -7.080000e+02, double %125
  %127 = call double @llvm.fma.f64(double %126, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %128 = fsub double %127, 0x4338000000000000
  %129 = call double @llvm.fma.f64(double %128, double 0xBFE62E42FEE00000, double %126)
  %130 = call double @llvm.fma.f64(double %128, double 0xBDEA39EF35793C76, double %129)
  %131 = bitcast double %127 to i64
  %132 = add i64 %131, 1023
  %133 = shl i64 %132, 52
  %134 = bitcast i64 %133 to double
  %135 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %130, double 0x3DE6124613A86D09)
  %136 = call double @llvm.fma.f64(double %135, double %130, double 0x3E21EED8EFF8D898)
  %137 = call double @llvm.fma.f64(double %136, double %130, double 0x3E5AE64567F544E4)
  %138 = call double @llvm.fma.f64(double %137, double %130, double 0x3E927E4FB7789F5C)
  %139 = call double @llvm.fma.f64(double %138, double %130, double 0x3EC71DE3A556C734)
  %140 = call double @llvm.fma.f64(double %139, double %130, double 0x3EFA01A01A01A01A)
  %141 = call double @llvm.fma.f64(double %140, double %130, double 0x3F2A01A01A01A01A)
  %142 = call double @llvm.fma.f64(double %141, double %130, double 0x3F56C16C16C16C17)
  %143 = call double @llvm.fma.f64(double %142, double %130, double 0x3F81111111111111)
  %144 = call double @llvm.fma.f64(double %143, double %130, double 0x3FA5555555555555)
  %145 = call double @llvm.fma.f64(double %144, double %130, double 0x3FC5555555555555)
  %146 = call double @llvm.fma.f64(double %145, double %130, double 5.000000e-01)
  %147 = call double @llvm.fma.f64(double %146, double %130, double 1.000000e+00)
  %148 = fmul double %130, %147
  %149 = fsub double %134, 1.000000e+00
  %150 = call double @llvm.fma.f64(double %134, double %148, double %149)
  %151 = select i1 %122, double 0x7FF0000000000000, double %150
  %152 = fadd double %151, 1.000000e+00
  %153 = fmul double %152, -1.000000e+00
  %154 = call double @llvm.fabs.f64(double %23)
  %155 = fmul double %151, %154
  %156 = fmul double %154, %153
  %157 = fsub double %119, %155
  %158 = fmul double 1.000000e+00, %120
  %159 = fmul double -1.000000e+00, %156
  %160 = fadd double %158, %159
  %161 = fmul double %83, %83
  %162 = fmul double %83, %86
  %163 = fmul double %83, %86
  %164 = fadd double %162, %163
  %165 = fadd double 1.000000e+00, %161
  %166 = fmul double 1.000000e+00, %164
  %167 = fcmp olt double %165, 0x10000000000000
  %168 = fmul double %165, 0x4350000000000000
  %169 = select i1 %167, double %168, double %165
  %170 = bitcast double %169 to i64
  %171 = lshr i64 %170, 52
  %172 = and i64 %171, 2047
  %173 = sub i64 %172, 1023
  %174 = and i64 %170, 4503599627370495
  %175 = or i64 %174, 4607182418800017408
  %176 = bitcast i64 %175 to double
  %177 = fcmp ogt double %176, 0x3FF6A09E667F3BCD
  %178 = fmul double %176, 5.000000e-01
  %179 = select i1 %177, double %178, double %176
  %180 = add i64 %173, 1
  %181 = select i1 %177, i64 %180, i64 %173
  %182 = fsub double %179, 1.000000e+00
  %183 = fadd double %179, 1.000000e+00
  %184 = fdiv double %182, %183
  %185 = fmul double %184, %184
  %186 = call double @llvm.fma.f64(double 0x3FBAF286BCA1AF28, double %185, double 0x3FBE1E1E1E1E1E1E)
  %187 = call double @llvm.fma.f64(double %186, double %185, double 0x3FC1111111111111)
  %188 = call double @llvm.fma.f64(double %187, double %185, double 0x3FC3B13B13B13B14)
  %189 = call double @llvm.fma.f64(double %188, double %185, double 0x3FC745D1745D1746)
  %190 = call double @llvm.fma.f64(double %189, double %185, double 0x3FCC71C71C71C71C)
  %191 = call double @llvm.fma.f64(double %190, double %185, double 0x3FD2492492492492)
  %192 = call double @llvm.fma.f64(double %191, double %185, double 4.000000e-01)
  %193 = call double @llvm.fma.f64(double %192, double %185, double 0x3FE5555555555555)
  %194 = call double @llvm.fma.f64(double %193, double %185, double 2.000000e+00)
  %195 = fmul double %184, %194
  %196 = sitofp i64 %181 to double
  %197 = call double @llvm.fma.f64(double %195, double 0x3FF71547652B82FE, double %196)
  %198 = select i1 %167, double 5.400000e+01, double 0.000000e+00
  %199 = fsub double %197, %198
  %200 = fmul double %199, 0x3FE62E42FEFA39EF
  %201 = fcmp oeq double %165, 0.000000e+00
  %202 = fcmp oeq double %165, 0x7FF0000000000000
  %203 = select i1 %202, double %165, double %200
  %204 = select i1 %201, double 0xFFF0000000000000, double %203
  %205 = fcmp oge double %165, 0.000000e+00
  %206 = select i1 %205, double %204, double 0x7FF8000000000000
  %207 = fdiv double 1.000000e+00, %165
  %208 = fmul double %207, %166
  %209 = fadd double 2.000000e+00, %12
  %210 = call double @llvm.sqrt.f64(double %209)
  %211 = fdiv double 5.000000e-01, %210
  %212 = fmul double %211, 1.000000e+00
  %213 = fdiv double %206, %210
  %214 = fneg double %213
  %215 = fdiv double %214, %210
  %216 = fmul double %215, %212
  %217 = fdiv double 1.000000e+00, %210
  %218 = fmul double %217, %208
  %219 = fadd double %157, %213
  %220 = fmul double 1.000000e+00, %216
  %221 = fmul double 1.000000e+00, %160
  %222 = fmul double 1.000000e+00, %218
  %223 = fadd double %221, %222
  %224 = fcmp olt double %40, 1.000000e+00
  %225 = fcmp ole double -3.000000e+00, %83
  %226 = and i1 %224, %225
  %227 = fcmp oeq double %26, 0.000000e+00
  %228 = or i1 %226, %227
  %229 = fcmp ole double %219, -1.000000e+02
  %230 = xor i1 %229, true
  %231 = and i1 %228, %230
  %232 = fmul double %12, %219
  %233 = fmul double %219, 1.000000e+00
  %234 = fmul double %12, %220
  %235 = fadd double %233, %234
  %236 = fmul double %12, %223
  %237 = select i1 %231, double %219, double %232
  %238 = select i1 %231, double 1.000000e+00, double 0.000000e+00
  %239 = fmul double %238, %220
  %240 = fcmp oeq double %238, 0.000000e+00
  %241 = select i1 %240, double 0.000000e+00, double %239
  %242 = xor i1 %231, true
  %243 = select i1 %242, double 1.000000e+00, double 0.000000e+00
  %244 = fmul double %243, %235
  %245 = fcmp oeq double %243, 0.000000e+00
  %246 = select i1 %245, double 0.000000e+00, double %244
  %247 = fadd double %241, %246
  %248 = select i1 %231, double 1.000000e+00, double 0.000000e+00
  %249 = fmul double %248, %223
  %250 = fcmp oeq double %248, 0.000000e+00
  %251 = select i1 %250, double 0.000000e+00, double %249
  %252 = xor i1 %231, true
  %253 = select i1 %252, double 1.000000e+00, double 0.000000e+00
  %254 = fmul double %253, %236
  %255 = fcmp oeq double %253, 0.000000e+00
  %256 = select i1 %255, double 0.000000e+00, double %254
  %257 = fadd double %251, %256
  %258 = fadd double %237, %219
  %259 = fmul double 1.000000e+00, %247
  %260 = fmul double 1.000000e+00, %257
  %261 = fcmp oeq double %26, 1.000000e+00
  %262 = xor i1 %261, true
  %263 = fcmp olt double 0.000000e+00, %31
  %264 = and i1 %262, %263
  %265 = select i1 %264, double %31, double 2.500000e-01
  %266 = fmul double %258, %265
  %267 = fmul double %265, %259
  %268 = fmul double %265, %260
  %269 = select i1 %231, double 1.000000e+00, double 0.000000e+00
  %270 = icmp eq ptr addrspace(1) %loss, null
  %271 = xor i1 %270, true
  br i1 %271, label %when, label %join4

when:                                             ; preds = %join3
  %272 = fptrunc double %266 to float
  %273 = getelementptr float, ptr addrspace(1) %loss, i64 %5
  store float %272, ptr addrspace(1) %273, align 4
  br label %join4

join4:                                            ; preds = %when, %join3
  %274 = icmp eq ptr addrspace(1) %grad_logprob, null
  %275 = xor i1 %274, true
  br i1 %275, label %when5, label %join6

when5:                                            ; preds = %join4
  %276 = fptrunc double %268 to float
  %277 = getelementptr float, ptr addrspace(1) %grad_logprob, i64 %5
  store float %276, ptr addrspace(1) %277, align 4
  br label %join6

join6:                                            ; preds = %when5, %join4
  %278 = icmp eq ptr addrspace(1) %grad_entropy, null
  %279 = xor i1 %278, true
  br i1 %279, label %when7, label %join8

when7:                                            ; preds = %join6
  %280 = fptrunc double %267 to float
  %281 = getelementptr float, ptr addrspace(1) %grad_entropy, i64 %5
  store float %280, ptr addrspace(1) %281, align 4
  br label %join8

join8:                                            ; preds = %when7, %join6
  %282 = mul i64 %n, 0
  %283 = add i64 %282, %5
  %284 = icmp eq ptr addrspace(1) %metrics, null
  %285 = xor i1 %284, true
  br i1 %285, label %when9, label %join10

when9:                                            ; preds = %join8
  %286 = fptrunc double %269 to float
  %287 = getelementptr float, ptr addrspace(1) %metrics, i64 %283
  store float %286, ptr addrspace(1) %287, align 4
  br label %join10

join10:                                           ; preds = %when9, %join8
  %288 = add i64 %n, %5
  %289 = icmp eq ptr addrspace(1) %metrics, null
  %290 = xor i1 %289, true
  br i1 %290, label %when11, label %join12

when11:                                           ; preds = %join10
  %291 = fptrunc double %83 to float
  %292 = getelementptr float, ptr addrspace(1) %metrics, i64 %288
  store float %291, ptr addrspace(1) %292, align 4
  br label %join12

join12:                                           ; preds = %when11, %join10
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.tid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.fma.f64(double, double, double) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.fabs.f64(double) #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.sqrt.f64(double) #1

attributes #0 = { nounwind "denormal-fp-math-f32"="preserve-sign,preserve-sign" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }

!nvvm.annotations = !{!0, !1}

!0 = !{ptr @flp_loss_rows, !"kernel", i32 1}
!1 = !{ptr @flp_loss_rows, !"maxntidx", i32 256}
!2 = !{i32 0, i32 2147483647}
!3 = !{i32 0, i32 256}
!4 = !{}
