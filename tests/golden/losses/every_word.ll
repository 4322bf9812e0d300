; ModuleID = 'loss_rows'
source_filename = "loss_rows"
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

; Function Attrs: nounwind
define void @flp_loss_rows(ptr addrspace(1) %logprob, ptr addrspace(1) %entropy, ptr addrspace(1) %old_logprob, ptr addrspace(1) %ref_logprob, ptr addrspace(1) %advantage, ptr addrspace(1) %weight, ptr addrspace(1) %vector0, ptr addrspace(1) %vector1, ptr addrspace(1) %vector2, ptr addrspace(1) %vector3, ptr addrspace(1) %vector4, ptr addrspace(1) %vector5, ptr addrspace(1) %vector6, ptr addrspace(1) %vector7, double %parameter0, double %parameter1, double %parameter2, double %parameter3, double %parameter4, double %parameter5, double %parameter6, double %parameter7, i64 %n, ptr addrspace(1) %index, ptr addrspace(1) %count, i32 %row_begin, i32 %row_end, ptr addrspace(1) %row_class, ptr addrspace(1) %loss, ptr addrspace(1) %grad_logprob, ptr addrspace(1) %grad_entropy, ptr addrspace(1) %metrics, ptr addrspace(1) %program) #0 {
entry:
  %0 = icmp eq ptr addrspace(1) %index, null
  %1 = xor i1 %0, true
  br i1 %1, label %then, label %else

then:                                             ; preds = %entry
  %2 = getelementptr i32, ptr addrspace(1) %count, i64 0
  %3 = load i32, ptr addrspace(1) %2, align 4
  %4 = call i32 @llvm.smin.i32(i32 %3, i32 %row_end)
  %5 = sext i32 %4 to i64
  br label %join

else:                                             ; preds = %entry
  br label %join

join:                                             ; preds = %else, %then
  %6 = phi i64 [ %5, %then ], [ %n, %else ]
  %7 = select i1 %1, i32 %row_begin, i32 0
  %8 = sext i32 %7 to i64
  %9 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !range !2
  %10 = mul i32 %9, 256
  %11 = sext i32 %10 to i64
  %12 = add i64 %8, %11
  %13 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !range !3
  %14 = sext i32 %13 to i64
  %15 = add i64 %12, %14
  %16 = icmp slt i64 %15, %6
  br i1 %16, label %when, label %join1

when:                                             ; preds = %join
  br i1 %1, label %then2, label %else3

then2:                                            ; preds = %when
  %17 = getelementptr i32, ptr addrspace(1) %index, i64 %15
  %18 = load i32, ptr addrspace(1) %17, align 4
  %19 = sext i32 %18 to i64
  br label %join4

else3:                                            ; preds = %when
  br label %join4

join4:                                            ; preds = %else3, %then2
  %20 = phi i64 [ %19, %then2 ], [ %15, %else3 ]
  %21 = icmp eq ptr addrspace(1) %row_class, null
  br i1 %21, label %then5, label %else6

then5:                                            ; preds = %join4
  %22 = icmp eq ptr addrspace(1) %weight, null
  br i1 %22, label %then8, label %else9

then8:                                            ; preds = %then5
  br label %join10

else9:                                            ; preds = %then5
  %23 = getelementptr float, ptr addrspace(1) %weight, i64 %20
  %24 = load float, ptr addrspace(1) %23, align 4, !invariant.load !4
  %25 = fpext float %24 to double
  br label %join10

join10:                                           ; preds = %else9, %then8
  %26 = phi double [ 1.000000e+00, %then8 ], [ %25, %else9 ]
  %27 = getelementptr float, ptr addrspace(1) %logprob, i64 %20
  %28 = load float, ptr addrspace(1) %27, align 4, !invariant.load !4
  %29 = fpext float %28 to double
  %30 = getelementptr float, ptr addrspace(1) %entropy, i64 %20
  %31 = load float, ptr addrspace(1) %30, align 4, !invariant.load !4
  %32 = fpext float %31 to double
  %33 = icmp eq ptr addrspace(1) %old_logprob, null
  br i1 %33, label %then11, label %else12

then11:                                           ; preds = %join10
  %34 = getelementptr float, ptr addrspace(1) %logprob, i64 %20
  %35 = load float, ptr addrspace(1) %34, align 4, !invariant.load !4
  %36 = fpext float %35 to double
  br label %join13

else12:                                           ; preds = %join10
  %37 = getelementptr float, ptr addrspace(1) %old_logprob, i64 %20
  %38 = load float, ptr addrspace(1) %37, align 4, !invariant.load !4
  %39 = fpext float %38 to double
  br label %join13

join13:                                           ; preds = %else12, %then11
  %40 = phi double [ %36, %then11 ], [ %39, %else12 ]
  %41 = getelementptr float, ptr addrspace(1) %ref_logprob, i64 %20
  %42 = load float, ptr addrspace(1) %41, align 4, !invariant.load !4
  %43 = fpext float %42 to double
  %44 = getelementptr float, ptr addrspace(1) %advantage, i64 %20
  %45 = load float, ptr addrspace(1) %44, align 4, !invariant.load !4
  %46 = fpext float %45 to double
  %47 = getelementptr float, ptr addrspace(1) %vector0, i64 %20
  %48 = load float, ptr addrspace(1) %47, align 4, !invariant.load !4
  %49 = fpext float %48 to double
  %50 = getelementptr float, ptr addrspace(1) %vector1, i64 %20
  %51 = load float, ptr addrspace(1) %50, align 4, !invariant.load !4
  %52 = fpext float %51 to double
  %53 = fsub double %29, %40
  %54 = fcmp olt double %53, %49
  %55 = fcmp uno double %53, %53
  %56 = or i1 %54, %55
  %57 = select i1 %56, double %53, double %49
  %58 = fcmp ogt double %53, %49
  %59 = fcmp oeq double %53, %49
  %60 = select i1 %59, double 5.000000e-01, double 1.000000e+00
  %61 = select i1 %58, double 0.000000e+00, double %60
  %62 = fcmp ogt double %49, %53
  %63 = fcmp oeq double %53, %49
  %64 = select i1 %63, double 5.000000e-01, double 1.000000e+00
  %65 = select i1 %62, double 0.000000e+00, double %64
  %66 = fmul double %61, 1.000000e+00
  %67 = fcmp oeq double %61, 0.000000e+00
  %68 = select i1 %67, double 0.000000e+00, double %66
  %69 = fcmp ogt double %53, %52
  %70 = fcmp uno double %53, %53
  %71 = or i1 %69, %70
  %72 = select i1 %71, double %53, double %52
  %73 = fcmp olt double %53, %52
  %74 = fcmp oeq double %53, %52
  %75 = select i1 %74, double 5.000000e-01, double 1.000000e+00
  %76 = select i1 %73, double 0.000000e+00, double %75
  %77 = fcmp olt double %52, %53
  %78 = fcmp oeq double %53, %52
  %79 = select i1 %78, double 5.000000e-01, double 1.000000e+00
  %80 = select i1 %77, double 0.000000e+00, double %79
  %81 = fmul double %76, 1.000000e+00
  %82 = fcmp oeq double %76, 0.000000e+00
  %83 = select i1 %82, double 0.000000e+00, double %81
  %84 = fadd double %57, %72
  %85 = fmul double 1.000000e+00, %68
  %86 = fmul double 1.000000e+00, %83
  %87 = fadd double %85, %86
  %88 = fmul double %parameter0, %26
  %89 = fcmp ogt double %53, %parameter1
  %90 = fcmp uno double %53, %53
  %91 = or i1 %89, %90
  %92 = select i1 %91, double %53, double %parameter1
  %93 = fcmp olt double %92, %88
  %94 = fcmp uno double %92, %92
  %95 = or i1 %93, %94
  %96 = select i1 %95, double %92, double %88
  %97 = fcmp oge double %53, %parameter1
  %98 = fcmp ole double %53, %88
  %99 = and i1 %97, %98
  %100 = select i1 %99, double 1.000000e+00, double 0.000000e+00
  %101 = fcmp olt double %parameter1, %88
  %102 = fcmp olt double %53, %parameter1
  %103 = and i1 %101, %102
  %104 = select i1 %103, double 1.000000e+00, double 0.000000e+00
  %105 = fcmp ogt double %53, %88
  %106 = fcmp olt double %88, %parameter1
  %107 = or i1 %105, %106
  %108 = select i1 %107, double 1.000000e+00, double 0.000000e+00
  %109 = fmul double %100, 1.000000e+00
  %110 = fcmp oeq double %100, 0.000000e+00
  %111 = select i1 %110, double 0.000000e+00, double %109
  %112 = fadd double %84, %96
  %113 = fmul double 1.000000e+00, %87
  %114 = fmul double 1.000000e+00, %111
  %115 = fadd double %113, %114
  %116 = fdiv double %112, 8.000000e+00
  %117 = fneg double %116
  %118 = fdiv double %117, 8.000000e+00
  %119 = fmul double 1.250000e-01, %115
  %120 = fcmp ogt double %116, 7.080000e+02
  %121 = fcmp olt double %116, -7.080000e+02
  %122 = fcmp ogt double %116, 7.080000e+02
  %123 = select i1 %122, double 7.080000e+02, double %116
  %124 = select i1 %121, double -7.080000e+02, double %123
  %125 = call double @llvm.fma.f64(double %124, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %126 = fsub double %125, 0x4338000000000000
  %127 = call double @llvm.fma.f64(double %126, double 0xBFE62E42FEE00000, double %124)
  %128 = call double @llvm.fma.f64(double %126, double 0xBDEA39EF35793C76, double %127)
  %129 = bitcast double %125 to i64
  %130 = add i64 %129, 1023
  %131 = shl i64 %130, 52
  %132 = bitcast i64 %131 to double
  %133 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %128, double 0x3DE6124613A86D09)
  %134 = call double @llvm.fma.f64(double %133, double %128, double 0x3E21EED8EFF8D898)
  %135 = call double @llvm.fma.f64(double %134, double %128, double 0x3E5AE64567F544E4)
  %136 = call double @llvm.fma.f64(double %135, double %128, double 0x3E927E4FB7789F5C)
  %137 = call double @llvm.fma.f64(double %136, double %128, double 0x3EC71DE3A556C734)
  %138 = call double @llvm.fma.f64(double %137, double %128, double 0x3EFA01A01A01A01A)
  %139 = call double @llvm.fma.f64(double %138, double %128, double 0x3F2A01A01A01A01A)
  %140 = call double @llvm.fma.f64(double %139, double %128, double 0x3F56C16C16C16C17)
  %141 = call double @llvm.fma.f64(double %140, double %128, double 0x3F81111111111111)
  %142 = call double @llvm.fma.f64(double %141, double %128, double 0x3FA5555555555555)
  %143 = call double @llvm.fma.f64(double %142, double %128, double 0x3FC5555555555555)
  %144 = call double @llvm.fma.f64(double %143, double %128, double 5.000000e-01)
  %145 = call double @llvm.fma.f64(double %144, double %128, double 1.000000e+00)
  %146 = fmul double %128, %145
  %147 = call double @llvm.fma.f64(double %132, double %146, double %132)
  %148 = fcmp olt double %116, -7.080000e+02
  %149 = select i1 %148, double 0.000000e+00, double %147
  %150 = select i1 %120, double 0x7FF0000000000000, double %149
  %151 = fmul double %150, %119
  %152 = fneg double %53
  %153 = fcmp ogt double %152, 7.080000e+02
  %154 = fcmp olt double %152, -7.080000e+02
  %155 = fcmp ogt double %152, 7.080000e+02
  %156 = select i1 %155, double 7.080000e+02, double %152
  %157 = select i1 %154, double -7.080000e+02, double %156
  %158 = call double @llvm.fma.f64(double %157, double 0x3FF71547652B82FE, double 0x4338000000000000)
  %159 = fsub double %158, 0x4338000000000000
  %160 = call double @llvm.fma.f64(double %159, double 0xBFE62E42FEE00000, double %157)
  %161 = call double @llvm.fma.f64(double %159, double 0xBDEA39EF35793C76, double %160)
  %162 = bitcast double %158 to i64
  %163 = add i64 %162, 1023
  %164 = shl i64 %163, 52
  %165 = bitcast i64 %164 to double
  %166 = call double @llvm.fma.f64(double 0x3DA93974A8C07C9D, double %161, double 0x3DE6124613A86D09)
  %167 = call double @llvm.fma.f64(double %166, double %161, double 0x3E21EED8EFF8D898)
  %168 = call double @llvm.fma.f64(double %167, double %161, double 0x3E5AE64567F544E4)
  %169 = call double @llvm.fma.f64(double %168, double %161, double 0x3E927E4FB7789F5C)
  %170 = call double @llvm.fma.f64(double %169, double %161, double 0x3EC71DE3A556C734)
  %171 = call double @llvm.fma.f64(double %170, double %161, double 0x3EFA01A01A01A01A)
  %172 = call double @llvm.fma.f64(double %171, double %161, double 0x3F2A01A01A01A01A)
  %173 = call double @llvm.fma.f64(double %172, double %161, double 0x3F56C16C16C16C17)
  %174 = call double @llvm.fma.f64(double %173, double %161, double 0x3F81111111111111)
  %175 = call double @llvm.fma.f64(double %174, double %161, double 0x3FA5555555555555)
  %176 = call double @llvm.fma.f64(double %175, double %161, double 0x3FC5555555555555)
  %177 = call double @llvm.fma.f64(double %176, double %161, double 5.000000e-01)
  %178 = call double @llvm.fma.f64(double %177, double %161, double 1.000000e+00)
  %179 = fmul double %161, %178
  %180 = fsub double %165, 1.000000e+00
  %181 = call double @llvm.fma.f64(double %165, double %179, double %180)
  %182 = select i1 %153, double 0x7FF0000000000000, double %181
  %183 = fadd double %182, 1.000000e+00
  %184 = fmul double %183, -1.000000e+00
  %185 = call double @llvm.fabs.f64(double %43)
  %186 = fmul double %182, %185
  %187 = fmul double %185, %184
  %188 = fsub double %150, %186
  %189 = fmul double 1.000000e+00, %151
  %190 = fmul double -1.000000e+00, %187
  %191 = fadd double %189, %190
  %192 = fmul double %112, %112
  %193 = fmul double %112, %115
  %194 = fmul double %112, %115
  %195 = fadd double %193, %194
  %196 = fadd double 1.000000e+00, %192
  %197 = fmul double 1.000000e+00, %195
  %198 = fcmp olt double %196, 0x10000000000000
  %199 = fmul double %196, 0x4350000000000000
  %200 = select i1 %198, double %199, double %196
  %201 = bitcast double %200 to i64
  %202 = lshr i64 %201, 52
  %203 = and i64 %202, 2047
  %204 = sub i64 %203, 1023
  %205 = and i64 %201, 4503599627370495
  %206 = or i64 %205, 4607182418800017408
  %207 = bitcast i64 %206 to double
  %208 = fcmp ogt double %207, 0x3FF6A09E667F3BCD
  %209 = fmul double %207, 5.000000e-01
  %210 = select i1 %208, double %209, double %207
  %211 = add i64 %204, 1
  %212 = select i1 %208, i64 %211, i64 %204
  %213 = fsub double %210, 1.000000e+00
  %214 = fadd double %210, 1.000000e+00
  %215 = fdiv double %213, %214
  %216 = fmul double %215, %215
  %217 = call double @llvm.fma.f64(double 0x3FBAF286BCA1AF28, double %216, double 0x3FBE1E1E1E1E1E1E)
  %218 = call double @llvm.fma.f64(double %217, double %216, double 0x3FC1111111111111)
  %219 = call double @llvm.fma.f64(double %218, double %216, double 0x3FC3B13B13B13B14)
  %220 = call double @llvm.fma.f64(double %219, double %216, double 0x3FC745D1745D1746)
  %221 = call double @llvm.fma.f64(double %220, double %216, double 0x3FCC71C71C71C71C)
  %222 = call double @llvm.fma.f64(double %221, double %216, double 0x3FD2492492492492)
  %223 = call double @llvm.fma.f64(double %222, double %216, double 4.000000e-01)
  %224 = call double @llvm.fma.f64(double %223, double %216, double 0x3FE5555555555555)
  %225 = call double @llvm.fma.f64(double %224, double %216, double 2.000000e+00)
  %226 = fmul double %215, %225
  %227 = sitofp i64 %212 to double
  %228 = call double @llvm.fma.f64(double %226, double 0x3FF71547652B82FE, double %227)
  %229 = select i1 %198, double 5.400000e+01, double 0.000000e+00
  %230 = fsub double %228, %229
  %231 = fmul double %230, 0x3FE62E42FEFA39EF
  %232 = fcmp oeq double %196, 0.000000e+00
  %233 = fcmp oeq double %196, 0x7FF0000000000000
  %234 = select i1 %233, double %196, double %231
  %235 = select i1 %232, double 0xFFF0000000000000, double %234
  %236 = fcmp oge double %196, 0.000000e+00
  %237 = select i1 %236, double %235, double 0x7FF8000000000000
  %238 = fdiv double 1.000000e+00, %196
  %239 = fmul double %238, %197
  %240 = fadd double 2.000000e+00, %32
  %241 = call double @llvm.sqrt.f64(double %240)
  %242 = fdiv double 5.000000e-01, %241
  %243 = fmul double %242, 1.000000e+00
  %244 = fdiv double %237, %241
  %245 = fdiv double 1.000000e+00, %241
  %246 = fneg double %244
  %247 = fdiv double %246, %241
  %248 = fmul double %247, %243
  %249 = fdiv double 1.000000e+00, %241
  %250 = fneg double %244
  %251 = fdiv double %250, %241
  %252 = fmul double %249, %239
  %253 = fadd double %188, %244
  %254 = fmul double 1.000000e+00, %248
  %255 = fmul double 1.000000e+00, %191
  %256 = fmul double 1.000000e+00, %252
  %257 = fadd double %255, %256
  %258 = fcmp olt double %53, 1.000000e+00
  %259 = fcmp ole double -3.000000e+00, %112
  %260 = and i1 %258, %259
  %261 = fcmp oeq double %46, 0.000000e+00
  %262 = or i1 %260, %261
  %263 = fcmp ole double %253, -1.000000e+02
  %264 = xor i1 %263, true
  %265 = and i1 %262, %264
  %266 = fmul double %32, %253
  %267 = fmul double %253, 1.000000e+00
  %268 = fmul double %32, %254
  %269 = fadd double %267, %268
  %270 = fmul double %32, %257
  %271 = select i1 %265, double %253, double %266
  %272 = select i1 %265, double 1.000000e+00, double 0.000000e+00
  %273 = xor i1 %265, true
  %274 = select i1 %273, double 1.000000e+00, double 0.000000e+00
  %275 = fmul double %272, %254
  %276 = fcmp oeq double %272, 0.000000e+00
  %277 = select i1 %276, double 0.000000e+00, double %275
  %278 = fmul double %274, %269
  %279 = fcmp oeq double %274, 0.000000e+00
  %280 = select i1 %279, double 0.000000e+00, double %278
  %281 = fadd double %277, %280
  %282 = select i1 %265, double 1.000000e+00, double 0.000000e+00
  %283 = xor i1 %265, true
  %284 = select i1 %283, double 1.000000e+00, double 0.000000e+00
  %285 = fmul double %282, %257
  %286 = fcmp oeq double %282, 0.000000e+00
  %287 = select i1 %286, double 0.000000e+00, double %285
  %288 = fmul double %284, %270
  %289 = fcmp oeq double %284, 0.000000e+00
  %290 = select i1 %289, double 0.000000e+00, double %288
  %291 = fadd double %287, %290
  %292 = fadd double %271, %253
  %293 = fmul double 1.000000e+00, %281
  %294 = fmul double 1.000000e+00, %291
  %295 = fcmp oeq double %46, 1.000000e+00
  %296 = xor i1 %295, true
  %297 = fcmp olt double 0.000000e+00, %26
  %298 = and i1 %296, %297
  %299 = select i1 %298, double %26, double 2.500000e-01
  %300 = fmul double %292, %299
  %301 = fmul double %299, %293
  %302 = fmul double %299, %294
  %303 = select i1 %265, double 1.000000e+00, double 0.000000e+00
  %304 = fcmp une double %26, 0.000000e+00
  %305 = select i1 %304, double %300, double 0.000000e+00
  %306 = icmp eq ptr addrspace(1) %loss, null
  %307 = xor i1 %306, true
  br i1 %307, label %when14, label %join15

when14:                                           ; preds = %join13
  %308 = fptrunc double %305 to float
  %309 = getelementptr float, ptr addrspace(1) %loss, i64 %20
  store float %308, ptr addrspace(1) %309, align 4
  br label %join15

join15:                                           ; preds = %when14, %join13
  %310 = select i1 %304, double %302, double 0.000000e+00
  %311 = icmp eq ptr addrspace(1) %grad_logprob, null
  %312 = xor i1 %311, true
  br i1 %312, label %when16, label %join17

when16:                                           ; preds = %join15
  %313 = fptrunc double %310 to float
  %314 = getelementptr float, ptr addrspace(1) %grad_logprob, i64 %20
  store float %313, ptr addrspace(1) %314, align 4
  br label %join17

join17:                                           ; preds = %when16, %join15
  %315 = select i1 %304, double %301, double 0.000000e+00
  %316 = icmp eq ptr addrspace(1) %grad_entropy, null
  %317 = xor i1 %316, true
  br i1 %317, label %when18, label %join19

when18:                                           ; preds = %join17
  %318 = fptrunc double %315 to float
  %319 = getelementptr float, ptr addrspace(1) %grad_entropy, i64 %20
  store float %318, ptr addrspace(1) %319, align 4
  br label %join19

join19:                                           ; preds = %when18, %join17
  %320 = mul i64 %n, 0
  %321 = add i64 %320, %20
  %322 = select i1 %304, double %303, double 0.000000e+00
  %323 = icmp eq ptr addrspace(1) %metrics, null
  %324 = xor i1 %323, true
  br i1 %324, label %when20, label %join21

when20:                                           ; preds = %join19
  %325 = fptrunc double %322 to float
  %326 = getelementptr float, ptr addrspace(1) %metrics, i64 %321
  store float %325, ptr addrspace(1) %326, align 4
  br label %join21

join21:                                           ; preds = %when20, %join19
  %327 = add i64 %n, %20
  %328 = select i1 %304, double %112, double 0.000000e+00
  %329 = icmp eq ptr addrspace(1) %metrics, null
  %330 = xor i1 %329, true
  br i1 %330, label %when22, label %join23

when22:                                           ; preds = %join21
  %331 = fptrunc double %328 to float
  %332 = getelementptr float, ptr addrspace(1) %metrics, i64 %327
  store float %331, ptr addrspace(1) %332, align 4
  br label %join23

join23:                                           ; preds = %when22, %join21
  br label %join7

else6:                                            ; preds = %join4
  %333 = getelementptr i8, ptr addrspace(1) %row_class, i64 %20
  %334 = load i8, ptr addrspace(1) %333, align 1
  %335 = sext i8 %334 to i32
  %336 = icmp eq i32 %335, 2
  %337 = select i1 %336, double 0x7FF8000000000000, double 0.000000e+00
  %338 = icmp ne i32 %335, 0
  br i1 %338, label %when24, label %join25

when24:                                           ; preds = %else6
  %339 = icmp eq ptr addrspace(1) %loss, null
  %340 = xor i1 %339, true
  br i1 %340, label %when26, label %join27

when26:                                           ; preds = %when24
  %341 = fptrunc double %337 to float
  %342 = getelementptr float, ptr addrspace(1) %loss, i64 %20
  store float %341, ptr addrspace(1) %342, align 4
  br label %join27

join27:                                           ; preds = %when26, %when24
  %343 = mul i64 %n, 0
  %344 = add i64 %343, %20
  %345 = icmp eq ptr addrspace(1) %metrics, null
  %346 = xor i1 %345, true
  br i1 %346, label %when28, label %join29

when28:                                           ; preds = %join27
  %347 = fptrunc double %337 to float
  %348 = getelementptr float, ptr addrspace(1) %metrics, i64 %344
  store float %347, ptr addrspace(1) %348, align 4
  br label %join29

join29:                                           ; preds = %when28, %join27
  %349 = add i64 %n, %20
  %350 = icmp eq ptr addrspace(1) %metrics, null
  %351 = xor i1 %350, true
  br i1 %351, label %when30, label %join31

when30:                                           ; preds = %join29
  %352 = fptrunc double %337 to float
  %353 = getelementptr float, ptr addrspace(1) %metrics, i64 %349
  store float %352, ptr addrspace(1) %353, align 4
  br label %join31

join31:                                           ; preds = %when30, %join29
  br label %join25

join25:                                           ; preds = %join31, %else6
  br label %join7

join7:                                            ; preds = %join25, %join23
  br label %join1

join1:                                            ; preds = %join7, %join
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #1

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
