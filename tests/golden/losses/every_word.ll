; ModuleID = 'loss_rows'
source_filename = "loss_rows"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_loss_rows(ptr addrspace(1) %logprob, ptr addrspace(1) %entropy, ptr addrspace(1) %old_logprob, ptr addrspace(1) %ref_logprob, ptr addrspace(1) %advantage, ptr addrspace(1) %weight, ptr addrspace(1) %vector0, ptr addrspace(1) %vector1, ptr addrspace(1) %vector2, ptr addrspace(1) %vector3, ptr addrspace(1) %vector4, ptr addrspace(1) %vector5, ptr addrspace(1) %vector6, ptr addrspace(1) %vector7, double %parameter0, double %parameter1, double %parameter2, double %parameter3, double %parameter4, double %parameter5, double %parameter6, double %parameter7, i64 %n, ptr addrspace(1) %index, ptr addrspace(1) %count, i32 %row_begin, i32 %row_end, ptr addrspace(1) %row_class, ptr addrspace(1) %loss, ptr addrspace(1) %grad_logprob, ptr addrspace(1) %grad_entropy, ptr addrspace(1) %metrics) #0 {
entry:
  %0 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !range !2
  %1 = mul i32 %0, 256
  %2 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !3
  %3 = add i32 %1, %2
  %4 = icmp eq ptr addrspace(1) %index, null
  %5 = xor i1 %4, true
  br i1 %5, label %then, label %else

then:                                             ; preds = %entry
  %6 = getelementptr i32, ptr addrspace(1) %count, i64 0
  %7 = load i32, ptr addrspace(1) %6, align 4
  %8 = call i32 @llvm.smin.i32(i32 %7, i32 %row_end)
  %9 = sext i32 %8 to i64
  br label %join

else:                                             ; preds = %entry
  br label %join

join:                                             ; preds = %else, %then
  %10 = phi i64 [ %9, %then ], [ %n, %else ]
  %11 = select i1 %5, i32 %row_begin, i32 0
  %12 = sext i32 %11 to i64
  %13 = sext i32 %3 to i64
  %14 = add i64 %12, %13
  %15 = icmp sge i64 %14, %10
  br i1 %15, label %leave, label %stay

leave:                                            ; preds = %join
  ret void

stay:                                             ; preds = %join
  br i1 %5, label %then1, label %else2

then1:                                            ; preds = %stay
  %16 = getelementptr i32, ptr addrspace(1) %index, i64 %14
  %17 = load i32, ptr addrspace(1) %16, align 4
  %18 = sext i32 %17 to i64
  br label %join3

else2:                                            ; preds = %stay
  br label %join3

join3:                                            ; preds = %else2, %then1
  %19 = phi i64 [ %18, %then1 ], [ %14, %else2 ]
  %20 = icmp eq ptr addrspace(1) %row_class, null
  br i1 %20, label %then4, label %else5

then4:                                            ; preds = %join3
  %21 = getelementptr float, ptr addrspace(1) %logprob, i64 %19
  %22 = load float, ptr addrspace(1) %21, align 4, !invariant.load !4
  %23 = fpext float %22 to double
  %24 = getelementptr float, ptr addrspace(1) %entropy, i64 %19
  %25 = load float, ptr addrspace(1) %24, align 4, !invariant.load !4
  %26 = fpext float %25 to double
  %27 = icmp eq ptr addrspace(1) %old_logprob, null
  br i1 %27, label %then7, label %else8

then7:                                            ; preds = %then4
  %28 = getelementptr float, ptr addrspace(1) %logprob, i64 %19
  %29 = load float, ptr addrspace(1) %28, align 4, !invariant.load !4
  %30 = fpext float %29 to double
  br label %join9

else8:                                            ; preds = %then4
  %31 = getelementptr float, ptr addrspace(1) %old_logprob, i64 %19
  %32 = load float, ptr addrspace(1) %31, align 4, !invariant.load !4
  %33 = fpext float %32 to double
  br label %join9

join9:                                            ; preds = %else8, %then7
  %34 = phi double [ %30, %then7 ], [ %33, %else8 ]
  %35 = getelementptr float, ptr addrspace(1) %ref_logprob, i64 %19
  %36 = load float, ptr addrspace(1) %35, align 4, !invariant.load !4
  %37 = fpext float %36 to double
  %38 = getelementptr float, ptr addrspace(1) %advantage, i64 %19
  %39 = load float, ptr addrspace(1) %38, align 4, !invariant.load !4
  %40 = fpext float %39 to double
  %41 = icmp eq ptr addrspace(1) %weight, null
  br i1 %41, label %then10, label %else11

then10:                                           ; preds = %join9
  br label %join12

else11:                                           ; preds = %join9
  %42 = getelementptr float, ptr addrspace(1) %weight, i64 %19
  %43 = load float, ptr addrspace(1) %42, align 4, !invariant.load !4
  %44 = fpext float %43 to double
  br label %join12

join12:                                           ; preds = %else11, %then10
  %45 = phi double [ 1.000000e+00, %then10 ], [ %44, %else11 ]
  %46 = getelementptr float, ptr addrspace(1) %vector0, i64 %19
  %47 = load float, ptr addrspace(1) %46, align 4, !invariant.load !4
  %48 = fpext float %47 to double
  %49 = getelementptr float, ptr addrspace(1) %vector1, i64 %19
  %50 = load float, ptr addrspace(1) %49, align 4, !invariant.load !4
  %51 = fpext float %50 to double
  %52 = fsub double %23, %34
  %53 = fcmp olt double %52, %48
  %54 = fcmp uno double %52, %52
  %55 = or i1 %53, %54
  %56 = select i1 %55, double %52, double %48
  %57 = fcmp ogt double %52, %48
  %58 = fcmp oeq double %52, %48
  %59 = select i1 %58, double 5.000000e-01, double 1.000000e+00
  %60 = select i1 %57, double 0.000000e+00, double %59
  %61 = fcmp ogt double %48, %52
  %62 = fcmp oeq double %52, %48
  %63 = select i1 %62, double 5.000000e-01, double 1.000000e+00
  %64 = select i1 %61, double 0.000000e+00, double %63
  %65 = fmul double %60, 1.000000e+00
  %66 = fcmp oeq double %60, 0.000000e+00
  %67 = select i1 %66, double 0.000000e+00, double %65
  %68 = fcmp ogt double %52, %51
  %69 = fcmp uno double %52, %52
  %70 = or i1 %68, %69
  %71 = select i1 %70, double %52, double %51
  %72 = fcmp olt double %52, %51
  %73 = fcmp oeq double %52, %51
  %74 = select i1 %73, double 5.000000e-01, double 1.000000e+00
  %75 = select i1 %72, double 0.000000e+00, double %74
  %76 = fcmp olt double %51, %52
  %77 = fcmp oeq double %52, %51
  %78 = select i1 %77, double 5.000000e-01, double 1.000000e+00
  %79 = select i1 %76, double 0.000000e+00, double %78
  %80 = fmul double %75, 1.000000e+00
  %81 = fcmp oeq double %75, 0.000000e+00
  %82 = select i1 %81, double 0.000000e+00, double %80
  %83 = fadd double %56, %71
  %84 = fmul double 1.000000e+00, %67
  %85 = fmul double 1.000000e+00, %82
  %86 = fadd double %84, %85
  %87 = fmul double %parameter0, %45
  %88 = fcmp ogt double %52, %parameter1
  %89 = fcmp uno double %52, %52
  %90 = or i1 %88, %89
  %91 = select i1 %90, double %52, double %parameter1
  %92 = fcmp olt double %91, %87
  %93 = fcmp uno double %91, %91
  %94 = or i1 %92, %93
  %95 = select i1 %94, double %91, double %87
  %96 = fcmp oge double %52, %parameter1
  %97 = fcmp ole double %52, %87
  %98 = and i1 %96, %97
  %99 = select i1 %98, double 1.000000e+00, double 0.000000e+00
  %100 = fcmp olt double %parameter1, %87
  %101 = fcmp olt double %52, %parameter1
  %102 = and i1 %100, %101
  %103 = select i1 %102, double 1.000000e+00, double 0.000000e+00
  %104 = fcmp ogt double %52, %87
  %105 = fcmp olt double %87, %parameter1
  %106 = or i1 %104, %105
  %107 = select i1 %106, double 1.000000e+00, double 0.000000e+00
  %108 = fmul double %99, 1.000000e+00
  %109 = fcmp oeq double %99, 0.000000e+00
  %110 = select i1 %109, double 0.000000e+00, double %108
  %111 = fadd double %83, %95
  %112 = fmul double 1.000000e+00, %86
  %113 = fmul double 1.000000e+00, %110
  %114 = fadd double %112, %113
  %115 = fdiv double %111, 8.000000e+00
  %116 = fneg double %115
  %117 = fdiv double %116, 8.000000e+00
  %118 = fmul double 1.250000e-01, %114
  %119 = fcmp ogt double %115, 7.080000e+02
  %120 = fcmp olt double %115, -7.080000e+02
  %121 = fcmp ogt double %115, 7.080000e+02
  %122 = select i1 %121, double 7.080000e+02, double %115
  %123 = select i1 %120, double -7.080000e+02, double %122
  %124 = call double @llvm.fma.f64(double %123, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %125 = fsub double %124, 0x4338000000000000
  %126 = call double @llvm.fma.f64(double %125, double 0xBFE62E42FEE00000, double %123)
  %127 = call double @llvm.fma.f64(double %125, double 0xBDEA39EF35793C76, double %126)
  %128 = bitcast double %124 to i64
  %129 = add i64 %128, 1023
  %130 = shl i64 %129, 52
  %131 = bitcast i64 %130 to double
  %132 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %127, double 0x3DE6124613A86D09)
  %133 = call double @llvm.fma.f64(double %132, double %127, double 0x3E21EED8EFF8D898)
  %134 = call double @llvm.fma.f64(double %133, double %127, double 0x3E5AE64567F544E4)
  %135 = call double @llvm.fma.f64(double %134, double %127, double 0x3E927E4FB7789F5C)
  %136 = call double @llvm.fma.f64(double %135, double %127, double 0x3EC71DE3A556C734)
  %137 = call double @llvm.fma.f64(double %136, double %127, double 0x3EFA01A01A01A01A)
  %138 = call double @llvm.fma.f64(double %137, double %127, double 0x3F2A01A01A01A01A)
  %139 = call double @llvm.fma.f64(double %138, double %127, double 0x3F56C16C16C16C17)
  %140 = call double @llvm.fma.f64(double %139, double %127, double 0x3F81111111111111)
  %141 = call double @llvm.fma.f64(double %140, double %127, double 0x3FA5555555555555)
  %142 = call double @llvm.fma.f64(double %141, double %127, double 0x3FC5555555555555)
  %143 = call double @llvm.fma.f64(double %142, double %127, double 5.000000e-01)
  %144 = call double @llvm.fma.f64(double %143, double %127, double 1.000000e+00)
  %145 = fmul double %127, %144
  %146 = call double @llvm.fma.f64(double %131, double %145, double %131)
  %147 = fcmp olt double %115, -7.080000e+02
  %148 = select i1 %147, double 0.000000e+00, double %146
  %149 = select i1 %119, double 0x7FF0000000000000, double %148
  %150 = fmul double %149, %118
  %151 = fneg double %52
  %152 = fcmp ogt double %151, 7.080000e+02
  %153 = fcmp olt double %151, -7.080000e+02
  %154 = fcmp ogt double %151, 7.080000e+02
  %155 = select i1 %154, double 7.080000e+02, double %151
  %156 = select i1 %153, double -7.080000e+02, double %155
  %157 = call double @llvm.fma.f64(double %156, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %158 = fsub double %157, 0x4338000000000000
  %159 = call double @llvm.fma.f64(double %158, double 0xBFE62E42FEE00000, double %156)
  %160 = call double @llvm.fma.f64(double %158, double 0xBDEA39EF35793C76, double %159)
  %161 = bitcast double %157 to i64
  %162 = add i64 %161, 1023
  %163 = shl i64 %162, 52
  %164 = bitcast i64 %163 to double
  %165 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %160, double 0x3DE6124613A86D09)
  %166 = call double @llvm.fma.f64(double %165, double %160, double 0x3E21EED8EFF8D898)
  %167 = call double @llvm.fma.f64(double %166, double %160, double 0x3E5AE64567F544E4)
  %168 = call double @llvm.fma.f64(double %167, double %160, double 0x3E927E4FB7789F5C)
  %169 = call double @llvm.fma.f64(double %168, double %160, double 0x3EC71DE3A556C734)
  %170 = call double @llvm.fma.f64(double %169, double %160, double 0x3EFA01A01A01A01A)
  %171 = call double @llvm.fma.f64(double %170, double %160, double 0x3F2A01A01A01A01A)
  %172 = call double @llvm.fma.f64(double %171, double %160, double 0x3F56C16C16C16C17)
  %173 = call double @llvm.fma.f64(double %172, double %160, double 0x3F81111111111111)
  %174 = call double @llvm.fma.f64(double %173, double %160, double 0x3FA5555555555555)
  %175 = call double @llvm.fma.f64(double %174, double %160, double 0x3FC5555555555555)
  %176 = call double @llvm.fma.f64(double %175, double %160, double 5.000000e-01)
  %177 = call double @llvm.fma.f64(double %176, double %160, double 1.000000e+00)
  %178 = fmul double %160, %177
  %179 = fsub double %164, 1.000000e+00
  %180 = call double @llvm.fma.f64(double %164, double %178, double %179)
  %181 = select i1 %152, double 0x7FF0000000000000, double %180
  %182 = fadd double %181, 1.000000e+00
  %183 = fmul double %182, -1.000000e+00
  %184 = call double @llvm.fabs.f64(double %37)
  %185 = fmul double %181, %184
  %186 = fmul double %184, %183
  %187 = fsub double %149, %185
  %188 = fmul double 1.000000e+00, %150
  %189 = fmul double -1.000000e+00, %186
  %190 = fadd double %188, %189
  %191 = fmul double %111, %111
  %192 = fmul double %111, %114
  %193 = fmul double %111, %114
  %194 = fadd double %192, %193
  %195 = fadd double 1.000000e+00, %191
  %196 = fmul double 1.000000e+00, %194
  %197 = fcmp olt double %195, 0x10000000000000
  %198 = fmul double %195, 0x4350000000000000
  %199 = select i1 %197, double %198, double %195
  %200 = bitcast double %199 to i64
  %201 = lshr i64 %200, 52
  %202 = and i64 %201, 2047
  %203 = sub i64 %202, 1023
  %204 = and i64 %200, 4503599627370495
  %205 = or i64 %204, 4607182418800017408
  %206 = bitcast i64 %205 to double
  %207 = fcmp ogt double %206, 0x3FF6A09E667F3BCD
  %208 = fmul double %206, 5.000000e-01
  %209 = select i1 %207, double %208, double %206
  %210 = add i64 %203, 1
  %211 = select i1 %207, i64 %210, i64 %203
  %212 = fsub double %209, 1.000000e+00
  %213 = fadd double %209, 1.000000e+00
  %214 = fdiv double %212, %213
  %215 = fmul double %214, %214
  %216 = call double @llvm.fma.f64(double 0x3FBAF286BCA1AF28, double %215, double 0x3FBE1E1E1E1E1E1E)
  %217 = call double @llvm.fma.f64(double %216, double %215, double 0x3FC1111111111111)
  %218 = call double @llvm.fma.f64(double %217, double %215, double 0x3FC3B13B13B13B14)
  %219 = call double @llvm.fma.f64(double %218, double %215, double 0x3FC745D1745D1746)
  %220 = call double @llvm.fma.f64(double %219, double %215, double 0x3FCC71C71C71C71C)
  %221 = call double @llvm.fma.f64(double %220, double %215, double 0x3FD2492492492492)
  %222 = call double @llvm.fma.f64(double %221, double %215, double 4.000000e-01)
  %223 = call double @llvm.fma.f64(double %222, double %215, double 0x3FE5555555555555)
  %224 = call double @llvm.fma.f64(double %223, double %215, double 2.000000e+00)
  %225 = fmul double %214, %224
  %226 = sitofp i64 %211 to double
  %227 = call double @llvm.fma.f64(double %225, double 0x3FF71547652B82FE, double %226)
  %228 = select i1 %197, double 5.400000e+01, double 0.000000e+00
  %229 = fsub double %227, %228
  %230 = fmul double %229, 0x3FE62E42FEFA39EF
  %231 = fcmp oeq double %195, 0.000000e+00
  %232 = fcmp oeq double %195, 0x7FF0000000000000
  %233 = select i1 %232, double %195, double %230
  %234 = select i1 %231, double 0xFFF0000000000000, double %233
  %235 = fcmp oge double %195, 0.000000e+00
  %236 = select i1 %235, double %234, double 0x7FF8000000000000
  %237 = fdiv double 1.000000e+00, %195
  %238 = fmul double %237, %196
  %239 = fadd double 2.000000e+00, %26
  %240 = call double @llvm.sqrt.f64(double %239)
  %241 = fdiv double 5.000000e-01, %240
  %242 = fmul double %241, 1.000000e+00
  %243 = fdiv double %236, %240
  %244 = fdiv double 1.000000e+00, %240
  %245 = fneg double %243
  %246 = fdiv double %245, %240
  %247 = fmul double %246, %242
  %248 = fdiv double 1.000000e+00, %240
  %249 = fneg double %243
  %250 = fdiv double %249, %240
  %251 = fmul double %248, %238
  %252 = fadd double %187, %243
  %253 = fmul double 1.000000e+00, %247
  %254 = fmul double 1.000000e+00, %190
  %255 = fmul double 1.000000e+00, %251
  %256 = fadd double %254, %255
  %257 = fcmp olt double %52, 1.000000e+00
  %258 = fcmp ole double -3.000000e+00, %111
  %259 = and i1 %257, %258
  %260 = fcmp oeq double %40, 0.000000e+00
  %261 = or i1 %259, %260
  %262 = fcmp ole double %252, -1.000000e+02
  %263 = xor i1 %262, true
  %264 = and i1 %261, %263
  %265 = fmul double %26, %252
  %266 = fmul double %252, 1.000000e+00
  %267 = fmul double %26, %253
  %268 = fadd double %266, %267
  %269 = fmul double %26, %256
  %270 = select i1 %264, double %252, double %265
  %271 = select i1 %264, double 1.000000e+00, double 0.000000e+00
  %272 = xor i1 %264, true
  %273 = select i1 %272, double 1.000000e+00, double 0.000000e+00
  %274 = fmul double %271, %253
  %275 = fcmp oeq double %271, 0.000000e+00
  %276 = select i1 %275, double 0.000000e+00, double %274
  %277 = fmul double %273, %268
  %278 = fcmp oeq double %273, 0.000000e+00
  %279 = select i1 %278, double 0.000000e+00, double %277
  %280 = fadd double %276, %279
  %281 = select i1 %264, double 1.000000e+00, double 0.000000e+00
  %282 = xor i1 %264, true
  %283 = select i1 %282, double 1.000000e+00, double 0.000000e+00
  %284 = fmul double %281, %256
  %285 = fcmp oeq double %281, 0.000000e+00
  %286 = select i1 %285, double 0.000000e+00, double %284
  %287 = fmul double %283, %269
  %288 = fcmp oeq double %283, 0.000000e+00
  %289 = select i1 %288, double 0.000000e+00, double %287
  %290 = fadd double %286, %289
  %291 = fadd double %270, %252
  %292 = fmul double 1.000000e+00, %280
  %293 = fmul double 1.000000e+00, %290
  %294 = fcmp oeq double %40, 1.000000e+00
  %295 = xor i1 %294, true
  %296 = fcmp olt double 0.000000e+00, %45
  %297 = and i1 %295, %296
  %298 = select i1 %297, double %45, double 2.500000e-01
  %299 = fmul double %291, %298
  %300 = fmul double %298, %292
  %301 = fmul double %298, %293
  %302 = select i1 %264, double 1.000000e+00, double 0.000000e+00
  %303 = icmp eq ptr addrspace(1) %loss, null
  %304 = xor i1 %303, true
  br i1 %304, label %when, label %join13

when:                                             ; preds = %join12
  %305 = fptrunc double %299 to float
  %306 = getelementptr float, ptr addrspace(1) %loss, i64 %19
  store float %305, ptr addrspace(1) %306, align 4
  br label %join13

join13:                                           ; preds = %when, %join12
  %307 = icmp eq ptr addrspace(1) %grad_logprob, null
  %308 = xor i1 %307, true
  br i1 %308, label %when14, label %join15

when14:                                           ; preds = %join13
  %309 = fptrunc double %301 to float
  %310 = getelementptr float, ptr addrspace(1) %grad_logprob, i64 %19
  store float %309, ptr addrspace(1) %310, align 4
  br label %join15

join15:                                           ; preds = %when14, %join13
  %311 = icmp eq ptr addrspace(1) %grad_entropy, null
  %312 = xor i1 %311, true
  br i1 %312, label %when16, label %join17

when16:                                           ; preds = %join15
  %313 = fptrunc double %300 to float
  %314 = getelementptr float, ptr addrspace(1) %grad_entropy, i64 %19
  store float %313, ptr addrspace(1) %314, align 4
  br label %join17

join17:                                           ; preds = %when16, %join15
  %315 = mul i64 %n, 0
  %316 = add i64 %315, %19
  %317 = icmp eq ptr addrspace(1) %metrics, null
  %318 = xor i1 %317, true
  br i1 %318, label %when18, label %join19

when18:                                           ; preds = %join17
  %319 = fptrunc double %302 to float
  %320 = getelementptr float, ptr addrspace(1) %metrics, i64 %316
  store float %319, ptr addrspace(1) %320, align 4
  br label %join19

join19:                                           ; preds = %when18, %join17
  %321 = add i64 %n, %19
  %322 = icmp eq ptr addrspace(1) %metrics, null
  %323 = xor i1 %322, true
  br i1 %323, label %when20, label %join21

when20:                                           ; preds = %join19
  %324 = fptrunc double %111 to float
  %325 = getelementptr float, ptr addrspace(1) %metrics, i64 %321
  store float %324, ptr addrspace(1) %325, align 4
  br label %join21

join21:                                           ; preds = %when20, %join19
  br label %join6

else5:                                            ; preds = %join3
  %326 = getelementptr i8, ptr addrspace(1) %row_class, i64 %19
  %327 = load i8, ptr addrspace(1) %326, align 1
  %328 = sext i8 %327 to i32
  %329 = icmp eq i32 %328, 2
  %330 = select i1 %329, double 0x7FF8000000000000, double 0.000000e+00
  %331 = icmp ne i32 %328, 0
  br i1 %331, label %when22, label %join23

when22:                                           ; preds = %else5
  %332 = icmp eq ptr addrspace(1) %loss, null
  %333 = xor i1 %332, true
  br i1 %333, label %when24, label %join25

when24:                                           ; preds = %when22
  %334 = fptrunc double %330 to float
  %335 = getelementptr float, ptr addrspace(1) %loss, i64 %19
  store float %334, ptr addrspace(1) %335, align 4
  br label %join25

join25:                                           ; preds = %when24, %when22
  %336 = mul i64 %n, 0
  %337 = add i64 %336, %19
  %338 = icmp eq ptr addrspace(1) %metrics, null
  %339 = xor i1 %338, true
  br i1 %339, label %when26, label %join27

when26:                                           ; preds = %join25
  %340 = fptrunc double %330 to float
  %341 = getelementptr float, ptr addrspace(1) %metrics, i64 %337
  store float %340, ptr addrspace(1) %341, align 4
  br label %join27

join27:                                           ; preds = %when26, %join25
  %342 = add i64 %n, %19
  %343 = icmp eq ptr addrspace(1) %metrics, null
  %344 = xor i1 %343, true
  br i1 %344, label %when28, label %join29

when28:                                           ; preds = %join27
  %345 = fptrunc double %330 to float
  %346 = getelementptr float, ptr addrspace(1) %metrics, i64 %342
  store float %345, ptr addrspace(1) %346, align 4
  br label %join29

join29:                                           ; preds = %when28, %join27
  br label %join23

join23:                                           ; preds = %join29, %else5
  br label %join6

join6:                                            ; preds = %join23, %join21
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef i32 @llvm.nvvm.read.ptx.sreg.tid.x() #1

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #1

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
